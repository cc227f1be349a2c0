"""Whatever stands in a header, the outcome is what the file holds or one sentence."""

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from export import gguf_file, tokenizer
from export.gguf_header import MAX_ITEMS, Header, read_header
from runtime.errors import BuildError, MirrorError
from tests import tiny

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
HUGE = 1 << 63


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str, sizes: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """The description of a tensor; `sizes` in the file's order."""
    shape = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def read(
    folder: Path,
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    counts: tuple[int, int] | None = None,
    start: bytes = b"GGUF\3\0\0\0",
) -> Header:
    tensors_claimed, pairs_claimed = counts or (len(tensors), len(pairs))
    content = start + struct.pack("<QQ", tensors_claimed, pairs_claimed)
    content += b"".join(pairs) + b"".join(tensors)
    if tensors:
        content += bytes(-len(content) % 32) + data
    path = folder / "made.gguf"
    path.write_bytes(content)
    return read_header(path)


def test_every_type_of_value_is_read(tmp_path: Path) -> None:
    pairs = [
        pair("a", U8, b"\xff"),
        pair("b", I8, b"\xff"),
        pair("c", U16, b"\xff\xff"),
        pair("d", I16, b"\xff\xff"),
        pair("e", U32, b"\xff" * 4),
        pair("f", I32, b"\xff" * 4),
        pair("g", F32, struct.pack("<f", 0.5)),
        pair("h", BOOL, b"\1"),
        pair("i", TEXT, text("żółw")),
        pair("j", ARRAY, array(TEXT, 2, text("x") + text(""))),
        pair("k", ARRAY, array(I32, 3, struct.pack("<3i", 1, -2, 3))),
        pair("l", U64, b"\xff" * 8),
        pair("m", I64, b"\xff" * 8),
        pair("n", F64, struct.pack("<d", 0.1)),
        pair("o", ARRAY, array(BOOL, 2, b"\0\1")),
        pair("p", ARRAY, array(F32, 0)),
    ]
    found = read(tmp_path, pairs).pairs
    numbers = [255, -1, 65535, -1, 2**32 - 1, -1, 0.5, True, "żółw", ["x", ""], [1, -2, 3]]
    assert list(found.values()) == [*numbers, 2**64 - 1, -1, 0.1, [False, True], []]
    assert [*found] == list("abcdefghijklmnop")
    assert found["h"] is True


def test_tensors_are_found_in_any_order(tmp_path: Path) -> None:
    described = [tensor("second", [2, 3], offset=32), tensor("first", [8])]
    numbers = np.arange(14, dtype=np.float32)
    for pairs in ([], [pair("general.alignment", U32, struct.pack("<I", 32))]):
        found = read(tmp_path, pairs, described, numbers.tobytes()).tensors
        assert found["second"].shape == (3, 2)
        assert found["second"].data.view(np.float32).tolist() == [8, 9, 10, 11, 12, 13]
        assert found["first"].data.view(np.float32).tolist() == [*range(8)]


HOSTILE: dict[str, tuple[list[bytes], list[bytes], str]] = {
    "array of 2^63": ([pair("k", ARRAY, array(U8, HUGE))], [], "value of 'k', it claims 9223372"),
    "texts of 2^62": ([pair("k", ARRAY, array(TEXT, 1 << 62))], [], "'k', it claims 46116860184"),
    "array past the end": ([pair("k", ARRAY, array(F64, 9))], [], "value of 'k', the file ends"),
    "array of arrays": ([pair("k", ARRAY, array(ARRAY, 1))], [], "values of the type 9"),
    "text of 2^63": ([pair("k", TEXT, struct.pack("<Q", HUGE))], [], "'k', the file ends there"),
    "text not UTF-8": ([pair("k", TEXT, text(b"\xc3("))], [], "value of 'k', it is not UTF-8"),
    "key not UTF-8": ([text(b"\xff") + b"\0" * 5], [], "key 1 of 1, it is not UTF-8"),
    "key of 2^63": ([struct.pack("<Q", HUGE)], [], "in the key 1 of 1, the file ends"),
    "unknown type": (
        [pair("k", 13, b"\0" * 8)],
        [],
        "value of 'k', it holds values of the type 13",
    ),
    "key twice": ([pair("k", U8, b"\0")] * 2, [], "'k' stands there twice"),
    "alignment 0": ([pair("general.alignment", U32, b"\0" * 4)], [], "alignment is 0"),
    "alignment 3": ([pair("general.alignment", U8, b"\3")], [], "alignment is 3"),
    "alignment true": ([pair("general.alignment", BOOL, b"\1")], [], "alignment is True"),
    "alignment text": ([pair("general.alignment", TEXT, text("32"))], [], "alignment is '32'"),
    "alignment 2^63": (
        [pair("general.alignment", U64, struct.pack("<Q", HUGE))],
        [tensor("t", [4])],
        "'t', the file ends 9223",
    ),
    "2^32 dimensions": ([], [text("t") + b"\xff" * 4], "'t', it claims 4294967295 dimensions"),
    "5 dimensions": ([], [tensor("t", [1] * 5)], "it claims 5 dimensions where 4"),
    "overflowing sizes": ([], [tensor("t", [1 << 62, 4])], "'t', the file ends 7378697629483"),
    "sizes whose product is 2^64": ([], [tensor("t", [1 << 32, 1 << 32])], "'t', the file ends"),
    "offset past the end": ([], [tensor("t", [4], offset=1 << 40)], "'t', the file ends 1099"),
    "offset of 2^64 - 32": ([], [tensor("t", [4], offset=2**64 - 32)], "'t', the file ends 1844"),
    "unaligned offset": ([], [tensor("t", [1], offset=4)], "offset 4 is no multiple of 32"),
    "overlap": (
        [],
        [tensor("t", [16]), tensor("u", [4], offset=32)],
        "'u', it overlaps the tensor before",
    ),
    "the same place": ([], [tensor("t", [4]), tensor("u", [4])], "'u', it overlaps"),
    "tensor twice": ([], [tensor("t", [1]), tensor("t", [1], offset=32)], "'t', it stands there"),
    "unknown block type": ([], [tensor("t", [32], kind=99)], "'t', the block type 99 is unknown"),
    "removed block type": ([], [tensor("t", [32], kind=4)], "'t', the block type 4 is unknown"),
    "half a block": ([], [tensor("t", [48], kind=8)], "rows of 48 are no whole blocks of 32"),
    "name not UTF-8": ([], [text(b"\x80") + b"\0" * 16], "tensor 1 of 1, it is not UTF-8"),
}


@pytest.mark.parametrize(("pairs", "tensors", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers(
    tmp_path: Path, pairs: list[bytes], tensors: list[bytes], message: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BuildError, match=message):
            read(tmp_path, pairs, tensors, bytes(64))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((HUGE, 0), "claims 9223372036854775808 tensors where 65536"),
        ((0, HUGE), "claims 9223372036854775808 pairs where 65536"),
        ((60_000, 0), "tensor 1 of 60000, the file ends there"),
        ((0, 60_000), "key 1 of 60000, the file ends there"),
    ],
)
def test_absurd_counts(tmp_path: Path, counts: tuple[int, int], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        read(tmp_path, counts=counts)


def test_arrays_together_have_a_limit(tmp_path: Path) -> None:
    half = array(U8, MAX_ITEMS // 2 + 1, bytes(MAX_ITEMS // 2 + 1))
    assert len(read(tmp_path, [pair("k", ARRAY, half)]).pairs["k"]) == MAX_ITEMS // 2 + 1
    with pytest.raises(BuildError, match=f"'l', it claims .* where {MAX_ITEMS // 2 - 1} are"):
        read(tmp_path, [pair("k", ARRAY, half), pair("l", ARRAY, half)])


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"GGML\3\0\0\0", "does not start with 'GGUF'"),
        (b"GGUF\1\0\0\0", "its version is 1"),
        (b"GGUF\4\0\0\0", "its version is 4"),
        (b"GGUF\0\0\0\3", "its version is 50331648, and only little-endian"),
    ],
)
def test_other_formats(tmp_path: Path, start: bytes, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        read(tmp_path, start=start)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is not a file"):
        read_header(tmp_path)
    with pytest.raises(BuildError, match="is not a file"):
        read_header(tmp_path / "absent.gguf")
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(BuildError, match="too short for a header"):
        read_header(path)


def borders(path: Path) -> list[int]:
    """Where each part of a sound file ends: counts, every pair, every tensor's description, data.

    Found from the names, each of which stands in the file once.
    """
    content, header = path.read_bytes(), read_header(path)
    starts = [content.index(text(name)) for name in (*header.pairs, *header.tensors)]
    data = [len(content) - len(tensor.data) for tensor in header.tensors.values()]
    return [0, 4, 8, 16, 24, *starts, *data, len(content)]


def test_a_file_cut_at_any_border(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "whole.gguf")
    content, ends = path.read_bytes(), borders(path)
    assert len(ends) > 60
    cut = tmp_path / "cut.gguf"
    for end in ends:
        for length in {max(end - 1, 0), end, end + 1}:
            if length < len(content) - 31:  # The last tensor may be padded behind its end.
                cut.write_bytes(content[:length])
                with pytest.raises(BuildError, match=r"not a GGUF file|the file ends"):
                    read_header(cut)


def test_changed_bytes_give_a_model_or_a_sentence(tmp_path: Path) -> None:
    """Single bytes, then runs of them, anywhere in the header of each family in turn."""
    noise = np.random.default_rng(5)
    read_well = refused = 0
    for family in tiny.FAMILIES.values():
        path = tiny.write_gguf(
            tmp_path / "changed.gguf", weights=family.weights(), pairs=family.pairs()
        )
        content = path.read_bytes()
        end = content.index(text("output.weight" if not family.tied else "output_norm.weight"))
        for _ in range(25):
            changed = bytearray(content)
            place = int(noise.integers(end))
            run = int(noise.choice([1, 1, 4, 8]))
            changed[place : place + run] = noise.bytes(run)
            path.write_bytes(changed)
            try:
                tokenizer.build(gguf_file.read(path).metadata)
                read_well += 1
            except MirrorError:
                refused += 1
    assert read_well > 10
    assert refused > 50
