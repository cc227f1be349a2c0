"""Break manifests by their values, by their structure and by their bytes."""

import itertools
import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from scripts.broken_bytes import EDGES, REALS, break_bytes

PATHS = [
    "../manifest.json",
    "/etc/hostname",
    "a\0b",
    "\ud800",
    "\udc80",
    "C:\\x",
    "\\\\host\\x",
    "",
]
PATHS += [
    "link",
    "loop",
    "up/x",
    "target",
    ".",
    "..",
    "./tokenizer.json",
    "target/../tokenizer.json",
]
PATHS += [
    "manifest.json",
    "tokenizer.json",
    "x" * 300,
    "x/" * 3000,
    "é😀",
    "CON",
    "a:b",
    "~",
    "a\nb",
]


def break_manifest(manifest: Mapping[str, Any], random: Random) -> bytes:
    """One broken manifest: other values of the right types, another structure, or other bytes."""
    tree = json.loads(json.dumps(manifest))
    way = random.random()
    for _ in range(random.randint(1, 2) if way < 0.9 else 0):
        (_nudge if way < 0.55 else _break_tree)(tree, random)
    text = json.dumps(tree, ensure_ascii=random.random() < 0.7, indent=random.choice([None, 2]))
    if random.random() < 0.02:
        text = text.replace('"name"', '"x": ' + '{"a": [' * 20_000 + "]}" * 20_000 + ', "name"', 1)
    content = text.encode("utf-8", "surrogatepass")
    if way < 0.8:
        return content
    for _ in range(random.randint(1, 3)):
        content = break_bytes(content, random)
    if random.random() < 0.1:
        others = [b"\xef\xbb\xbf" + content, content[:-9], b"", b"version 1 git-lfs " + content]
        content = random.choice([*others, text.encode("utf-16", "surrogatepass")])
    return content


def _nudge(tree: Any, random: Random) -> None:
    """Give one leaf another value of its own type."""
    leaves = [(h, k) for h, k in _places(tree) if not isinstance(h[k], dict | list)]
    holder, key = random.choice(leaves)
    value = holder[key]
    if isinstance(value, str):
        texts = [text for h, k in leaves if isinstance(text := h[k], str)]
        holder[key] = random.choice([*texts, *tree["files"], random.choice(PATHS), value + "x"])
    elif isinstance(value, int):
        near = [value + 1, value - 1, value * 2, value // 2, -value, random.randrange(9)]
        holder[key] = random.choice([*near, random.choice(EDGES)])
    elif isinstance(value, float):
        holder[key] = random.choice([value * 2, 0.0, -value, 1e30, 5e-324, 1.0])


def _break_tree(tree: Any, random: Random) -> None:
    holder, key = random.choice(list(_places(tree)))
    value = holder[key]
    way = random.randrange(8)
    if way < 2 and isinstance(value, int) and not isinstance(value, bool):
        holder[key] = random.choice(
            [value + 1, value - 1, value * 2, value // 2, -value, value + 0.5]
        )
    elif way < 4:
        holder[key] = _random_json(random, value)
    elif way == 4 and isinstance(holder, dict):
        del holder[key]
    elif way == 5 and isinstance(holder, dict):
        holder[random.choice([*PATHS, "name", "lanes", "2", "fused-int8"])] = holder.pop(key)
    else:
        other, place = random.choice(list(_places(tree)))
        # Through text, so that no value comes to hold itself.
        holder[key] = json.loads(json.dumps(other[place]))


def _random_json(random: Random, value: Any) -> Any:
    if isinstance(value, str) and random.random() < 0.7:
        return random.choice(PATHS)
    numbers: list[Any] = [*EDGES, *REALS, -1, -(2**63), 10**400, 0.5, 1e300]
    others: list[Any] = [
        None,
        True,
        False,
        [],
        {},
        [[]],
        {"a": 1},
        "1",
        value,
        [value],
        {"x": value},
    ]
    return random.choice([random.choice(numbers), random.choice(others), random.choice(PATHS)])


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in the tree that holds a value."""
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    here = ((tree, key) for key in keys)
    return itertools.chain(here, *(_places(tree[key]) for key in keys))
