"""Break GGUF files by their values, by their structure and by their bytes."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scripts.broken_bytes import EDGES, REALS, break_bytes, little_endian, number_put

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
TEXT, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXTS = ["", "llama", "qwen2", "qwen3", "mistral", "gpt2", "gpt-2", "default", "bert", " ", "a b"]
TEXTS += [
    "Ġ t",
    "t Ġ",
    "none",
    "linear",
    "yarn",
    "<0x41>",
    "\0",
    "é" * 99,
    "😀",
    "x" * 70_000,
    "{{",
]
TEXTS += [
    "{{ ''.__class__ }}",
    "{% for i in range(99999) %}{{ i }}{% endfor %}",
    "{{ 'a' * 10**9 }}",
]


@dataclass(frozen=True, slots=True)
class GgufParts:
    """A sound GGUF file cut up: the bytes of every pair and of every tensor's description."""

    pairs: Sequence[bytes]
    tensors: Sequence[bytes]
    data: bytes


def cut_gguf(content: bytes) -> GgufParts:
    """Cut up a file that is sound, of version 3."""
    num_tensors, num_pairs = struct.unpack_from("<QQ", content, 8)
    parts: list[bytes] = []
    place = 24
    for index in range(num_pairs + num_tensors):
        end = place + 8 + _number(content, "Q", place)
        if index < num_pairs:
            end = _after_value(content, _number(content, "I", end), end + 4)
        else:
            end += 4 + 8 * _number(content, "I", end) + 12
        parts.append(content[place:end])
        place = end
    data = content[-(-place // ALIGNMENT) * ALIGNMENT :]
    return GgufParts(parts[:num_pairs], parts[num_pairs:], data)


def _number(content: bytes, code: str, place: int) -> int:
    return int(struct.unpack_from("<" + code, content, place)[0])


def _after_value(content: bytes, kind: int, place: int) -> int:
    if kind == TEXT:
        return place + 8 + _number(content, "Q", place)
    if kind != ARRAY:
        return place + struct.calcsize(CODES[kind])
    inner, count = _number(content, "I", place), _number(content, "Q", place + 4)
    place += 12
    for _ in range(count):
        place = _after_value(content, inner, place)
    return place


def join_gguf(pairs: Sequence[bytes], tensors: Sequence[bytes], data: bytes) -> bytes:
    """The file of these parts."""
    header = MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(pairs))
    header += b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % ALIGNMENT) + data


def break_gguf(parts: GgufParts, random: Random) -> bytes:
    """One broken file: other values of the right types, another structure, or other bytes."""
    pairs, tensors, data = list(parts.pairs), list(parts.tensors), parts.data
    way = random.random()
    if way < 0.5:
        for _ in range(random.randint(1, 2)):
            place = random.randrange(len(pairs))
            pairs[place] = _other_value(pairs[place], random)
    elif way < 0.75:
        for _ in range(random.randint(1, 3)):
            _break_list(random.choice([pairs, tensors]), random)
    if random.random() < 0.1:
        data = break_bytes(data, random)
    content = join_gguf(pairs, tensors, data)
    if way < 0.7:
        return content
    header = len(content) - len(data)
    for _ in range(random.randint(1, 3)):
        content = break_bytes(content[:header], random) + content[header:]
    return content[: random.randrange(len(content))] if random.random() < 0.1 else content


def _other_value(pair: bytes, random: Random) -> bytes:
    """The pair with another value of its own type."""
    start = 8 + _number(pair, "Q", 0)
    kind, head, value = _number(pair, "I", start), pair[: start + 4], pair[start + 4 :]
    if kind != ARRAY:
        return head + _other_scalar(kind, value, random)
    inner, place = _number(value, "I", 0), 12
    items = []
    while place < len(value):
        end = _after_value(value, inner, place)
        items.append(value[place:end])
        place = end
    way = random.randrange(6)
    if way == 0:
        random.shuffle(items)
    elif way == 1:
        del items[random.randrange(len(items)) :]
    elif way == 2:
        items += items[: random.choice([1, 2, len(items)])]
    for _ in range(random.choice([1, 1, 2, 50]) if way > 2 else 0):
        index = random.randrange(len(items))
        items[index] = random.choice([_other_scalar(inner, items[index], random), *items[:3]])
    return head + value[:4] + struct.pack("<Q", len(items)) + b"".join(items)


def _other_scalar(kind: int, value: bytes, random: Random) -> bytes:
    if kind == TEXT:
        old = value[8:].decode()
        cut = random.randrange(len(old) + 1)
        texts = [
            random.choice(TEXTS),
            old[:cut],
            old + " ",
            old[:cut] + "{" + old[cut:],
            old.upper(),
        ]
        new = random.choice(texts).encode()
        return struct.pack("<Q", len(new)) + new
    if kind in (6, 12):
        return _real(kind, random.choice(REALS))
    number = int.from_bytes(value, "little")
    near = [number + 1, number - 1, number * 2, number // 2, number + 32]
    return little_endian(random.choice([*near, random.choice(EDGES)]), len(value))


def _real(kind: int, number: float) -> bytes:
    small = number if abs(number) < 3e38 or number != number or abs(number) == math.inf else 3e38
    return struct.pack("<f", small) if kind == 6 else struct.pack("<d", number)


def _break_list(parts: list[bytes], random: Random) -> None:
    if not parts:
        return
    place = random.randrange(len(parts))
    way = random.randrange(10)
    if way == 0:
        del parts[place]
    elif way == 1:
        parts.append(random.choice(parts))
    elif way == 2:
        other = random.randrange(len(parts))
        parts[place], parts[other] = parts[other], parts[place]
    elif way == 3:
        parts[place] = break_bytes(parts[place], random)
    elif way == 4:
        parts[place] = number_put(parts[place], random)
    else:
        name = parts[place][: 8 + struct.unpack_from("<Q", parts[place])[0]]
        parts[place] = name + _random_value(random)


def _random_value(random: Random, *, depth: int = 0) -> bytes:
    """A value with its type in front, as a pair holds it."""
    kind = random.choice([0, 1, 4, 4, 4, 5, 6, 6, 7, TEXT, TEXT, ARRAY, 10, 11, 12])
    if kind == ARRAY and depth < 3:
        inner = _random_value(random, depth=depth + 1)
        count = random.choice([0, 1, 3, 271, 271, 1000])
        values = inner[4:] * count if len(inner) < 1000 else inner[4:]
        return struct.pack("<I", kind) + inner[:4] + struct.pack("<Q", count) + values
    if kind in (TEXT, ARRAY):
        text = random.choice(TEXTS).encode()
        return struct.pack("<IQ", TEXT, len(text)) + text
    if kind in (6, 12):
        return struct.pack("<I", kind) + _real(kind, random.choice(REALS))
    size = struct.calcsize(CODES[kind])
    return struct.pack("<I", kind) + little_endian(random.choice(EDGES), size)
