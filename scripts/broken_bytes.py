"""Break bytes in one place, and the numbers that break what reads them."""

from random import Random

EDGES = [0, 1, 2, 3, 7, 8, 9, 31, 32, 63, 64, 96, 127, 128, 255, 256, 4095, 65536, 2**20, 2**24]
EDGES += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
REALS = [0.0, -0.0, 1.0, -1.0, 1e-5, 1e-45, 1e38, -1e300, float("inf"), float("nan")]


def little_endian(number: int, size: int) -> bytes:
    """The last `size` bytes of a number."""
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def number_put(content: bytes, random: Random) -> bytes:
    """The bytes with a number of four or eight bytes that is at an edge somewhere."""
    size = random.choice([4, 8])
    if len(content) < size:
        return content
    place = random.randrange(len(content) - size + 1)
    old = int.from_bytes(content[place : place + size], "little")
    number = random.choice([*EDGES, old - 1, old + 1, old + 256])
    return content[:place] + little_endian(number, size) + content[place + size :]


def break_bytes(content: bytes, random: Random) -> bytes:
    """The bytes with one change at a random place."""
    if not content:
        return bytes([random.randrange(256)])
    start = random.randrange(len(content))
    end = min(len(content), start + random.choice([1, 1, 2, 4, 8, 33, 500]))
    way = random.randrange(7)
    if way == 0:
        flipped = content[start] ^ 1 << random.randrange(8)
        return content[:start] + bytes([flipped]) + content[start + 1 :]
    if way == 1:
        return number_put(content, random)
    if way == 2:
        return content[:start] + content[end:]
    if way == 3:
        return content[:end] + content[start:end] + content[end:]
    if way == 4:
        return content[:start] + random.randbytes(end - start) + content[end:]
    if way == 5:
        return content[:start] + random.choice([b"\0", b"\xff"]) * (end - start) + content[end:]
    return content[:start] + random.randbytes(random.randint(1, 9)) + content[start:]
