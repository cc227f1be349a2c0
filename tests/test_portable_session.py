"""A portable session gives the fused one's logits, whatever calls or branches a text comes in."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.cache import Arena
from runtime.errors import BundleError, ContextError
from runtime.fused import FusedSession
from runtime.manifest import Manifest
from runtime.portable import ROOT, PortableSession, ancestry
from tests import tiny

Tokens = NDArray[np.int64]
Array = NDArray[np.float32]
TEXT: Tokens = np.random.default_rng(5).integers(0, len(tiny.vocabulary()), tiny.CONTEXT)
OTHER: Tokens = (TEXT + 1) % len(tiny.vocabulary())
ROWS, WIDE = 4, 64


class Watched(PortableSession):
    """Notes for each turn how many tokens were cached and how many nodes were fed."""

    calls: list[tuple[int, int]]

    def _run(self, tokens: Sequence[int], parents: Sequence[int], num_logits: int) -> Array:
        self.calls.append((self.length, len(tokens)))
        return super()._run(tokens, parents, num_logits)


def opened(bundle: Path, precision: str = "fp32", *rows: int, **settings: Any) -> Watched:
    manifest = Manifest.load(bundle)
    graph = manifest.graph("target", precision, flavour="portable")
    graphs = {
        int(number): bundle / file
        for number, file in graph.rows.items()
        if not rows or int(number) in rows
    }
    settings = {"threads": 1, "slots": graph.context} | settings
    session = Watched(graphs, manifest.target.geometry, **settings)
    session.calls = []
    return session


def plain(bundle: Path, precision: str = "fp32") -> FusedSession:
    manifest = Manifest.load(bundle)
    path = manifest.graph_path("target", precision)
    return FusedSession(path, manifest.target.geometry, threads=1)


@pytest.fixture(params=["fp32", "int8"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def close(found: Array, wanted: Array, precision: str = "fp32") -> None:
    """Equal but for float32's rounding, which in int8 tips a step of a row now and then."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 if precision == "fp32" else 0.02)


def compositions(length: int) -> Iterator[list[int]]:
    """Every way to write `length` as a sum of whole numbers, in order."""
    for cuts in itertools.product((False, True), repeat=length - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut] + [length]
        yield [end - start for start, end in itertools.pairwise([0, *ends])]


@pytest.mark.parametrize("rows", [(ROWS,), (WIDE,), (ROWS, WIDE)])
@pytest.mark.parametrize("start", [0, 5])
def test_a_text_in_any_parts_has_the_fused_graphs_logits(
    precision: str, start: int, rows: tuple[int, ...], tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, precision, *rows)
    text = TEXT[: start + 5]
    wanted = plain(tiny_bundle, precision).extend(text, num_logits=5).copy()
    for parts in compositions(5):
        session.crop(start)
        end = start
        for part in parts:
            end += part
            found = session.extend(text[:end], num_logits=part)
            assert found.shape == (part, session.vocabulary)
            close(found, wanted[end - start - part : end - start], precision)
        assert session.length == len(text)


@pytest.mark.parametrize("length", [1, 4, 5, 64, 65, 68, 129])
def test_more_logits_than_a_graph_gives_come_in_several_calls(
    length: int, tiny_bundle: Path
) -> None:
    wanted = plain(tiny_bundle).extend(TEXT[:length], num_logits=length).copy()
    session = opened(tiny_bundle)
    for count in {1, 2, 4, 5, 9, length - 1, length} & set(range(1, length + 1)):
        session.crop(0)
        close(session.extend(TEXT[:length], num_logits=count), wanted[-count:])
        assert session.length == length


def test_a_long_text_goes_in_chunks_of_the_widest_graph(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle)
    assert session.chunk == WIDE
    while not session.prefill(TEXT[:200], num_logits=3):
        assert session.calls[-1] == (session.length - WIDE, WIDE)
    assert len(session.calls) == 3
    close(
        session.extend(TEXT[:200], num_logits=3),
        plain(tiny_bundle).extend(TEXT[:200], num_logits=3),
    )
    assert opened(tiny_bundle, "fp32", ROWS).chunk == ROWS


def test_what_was_cropped_is_read_again(precision: str, tiny_bundle: Path) -> None:
    session, fused = opened(tiny_bundle, precision), plain(tiny_bundle, precision)
    session.extend(TEXT[:30])
    for text in (
        np.concatenate([TEXT[:20], OTHER[:9]]),
        TEXT[:25],
        OTHER[:12],
        np.concatenate([OTHER[:3], TEXT[:70]]),
    ):
        close(session.extend(text, num_logits=2), fused.extend(text, num_logits=2), precision)
    session.crop(5)
    session.calls.clear()
    close(session.extend(OTHER[:10]), fused.extend(OTHER[:10]), precision)
    assert session.calls == [(3, 7)]


@pytest.mark.parametrize("context", [2, 16, tiny.CONTEXT, None])
def test_a_context_is_filled_to_the_last_slot_and_not_further(
    context: int | None, tiny_bundle: Path
) -> None:
    session, end = opened(tiny_bundle, context=context), context or tiny.CONTEXT
    assert session.context == end
    close(session.extend(TEXT[:end]), plain(tiny_bundle).extend(TEXT[:end]))
    close(session.extend(TEXT[:end], num_logits=2)[1:], plain(tiny_bundle).extend(TEXT[:end]))
    too_long = np.append(TEXT[:end], 1)
    message = f"A text of {end + 1} tokens does not fit in the context of {end}."
    for refused in (session.extend, session.prefill):
        with pytest.raises(ContextError, match=re.escape(message)):
            refused(too_long)
    assert session.length == end


def test_no_more_context_than_model_and_slots_have(tiny_bundle: Path) -> None:
    assert opened(tiny_bundle, context=10**6).context == tiny.CONTEXT
    assert opened(tiny_bundle, context=7).context == 7


def test_another_session_takes_a_cache_over(tiny_bundle: Path) -> None:
    first = opened(tiny_bundle)
    first.extend(TEXT[:30])
    second = opened(tiny_bundle, "fp32", WIDE, threads=2, cache=first.cache)
    close(second.extend(TEXT[:40]), plain(tiny_bundle).extend(TEXT[:40]))
    assert second.calls == [(30, 10)]
    assert first.length == 40, "it is one cache"


def test_a_session_goes_from_arena_to_arena(tiny_bundle: Path) -> None:
    session, fused = opened(tiny_bundle), plain(tiny_bundle)
    one, other = session.cache, session.new_cache(25)
    assert (other.context, other.keys.shape) == (25, one.keys.shape)
    session.extend(TEXT[:24])
    session.use(other)
    session.extend(OTHER[:24])
    session.use(one)
    close(session.extend(TEXT[:25]), fused.extend(TEXT[:25]))
    session.use(other)
    close(session.extend(OTHER[:25]), fused.extend(OTHER[:25]))
    assert session.calls == [(0, 24), (0, 24), (24, 1), (24, 1)]


def test_slots_that_the_graphs_do_not_have_are_named(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle, slots=tiny.CONTEXT - 1)
    with pytest.raises(BundleError, match="does not fit its manifest"):
        session.extend(TEXT[:3])


def test_a_graph_of_another_flavour_is_named(tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    graphs = {4: manifest.graph_path("target", "fp32")}
    with pytest.raises(BundleError, match="no input mask"):
        PortableSession(graphs, manifest.target.geometry, slots=256, threads=1)


# Trees.


@dataclass(frozen=True, slots=True)
class Tree:
    tokens: list[int]
    parents: list[int]

    def path(self, node: int) -> list[int]:
        """The nodes from the committed text down to `node`."""
        if node == ROOT:
            return []
        return [*self.path(self.parents[node]), node]

    def after(self, text: Tokens, path: Sequence[int]) -> Tokens:
        return np.concatenate([text, np.array([self.tokens[node] for node in path], np.int64)])


def all_parents(most: int) -> list[list[int]]:
    """The parents of every tree of up to `most` nodes, and of every forest."""
    return [
        list(parents)
        for count in range(1, most + 1)
        for parents in itertools.product(*(range(ROOT, node) for node in range(count)))
    ]


def tree_of(parents: Sequence[int], seed: int) -> Tree:
    noise = np.random.default_rng(seed)
    return Tree(noise.integers(0, len(tiny.vocabulary()), len(parents)).tolist(), list(parents))


def random_tree(seed: int) -> Tree:
    noise = np.random.default_rng(seed)
    count = int(noise.integers(5, 21))
    return tree_of([int(noise.integers(ROOT, node)) for node in range(count)], seed)


TREES = [tree_of(parents, seed) for seed, parents in enumerate(all_parents(4))]
RANDOM_TREES = [random_tree(seed) for seed in range(5)]


def test_what_each_node_sees() -> None:
    assert len(TREES) == 1 + 2 + 6 + 24
    for tree in (*TREES, *RANDOM_TREES):
        seen = ancestry(tree.parents)
        for node in range(len(tree.tokens)):
            assert np.flatnonzero(seen[node]).tolist() == sorted(tree.path(node))
    assert ancestry([]).shape == (0, 0)
    for wrong in ([0], [-2], [-1, 1], [-1, 0, 2], [-1, 5]):
        with pytest.raises(ValueError, match="has the parent"):
            ancestry(wrong)


@pytest.mark.parametrize("start", [1, 37])
def test_every_node_of_small_trees_has_the_logits_of_its_path(
    precision: str, start: int, tiny_bundle: Path
) -> None:
    session, fused = opened(tiny_bundle, precision), plain(tiny_bundle, precision)
    text = TEXT[:start]
    session.extend(text)
    for tree in TREES:
        found = session.branch(tree.tokens, tree.parents)
        assert found.shape == (len(tree.tokens), session.vocabulary)
        for node in range(len(tree.tokens)):
            close(found[node], fused.extend(tree.after(text, tree.path(node)))[0], precision)
        assert session.length == start, "a branch is no part of the text"


@pytest.mark.parametrize("rows", [(ROWS,), (ROWS, WIDE)])
@pytest.mark.parametrize("tree", RANDOM_TREES, ids=lambda tree: f"{len(tree.tokens)}-nodes")
def test_trees_wider_than_a_call_go_in_several(
    tree: Tree, rows: tuple[int, ...], precision: str, tiny_bundle: Path
) -> None:
    session, fused = opened(tiny_bundle, precision, *rows), plain(tiny_bundle, precision)
    text = TEXT[:11]
    session.extend(text)
    found = session.branch(tree.tokens, tree.parents)
    for node in range(len(tree.tokens)):
        close(found[node], fused.extend(tree.after(text, tree.path(node)))[0], precision)


def test_a_kept_path_continues_as_the_plain_text(precision: str, tiny_bundle: Path) -> None:
    """Every path of every small tree, and some of wider ones, is followed by more of the text."""
    session, fused = opened(tiny_bundle, precision), plain(tiny_bundle, precision)
    trees = TREES if precision == "fp32" else TREES[::3]
    cases = [(tree, node) for tree in trees for node in range(ROOT, len(tree.tokens))]
    cases += [(tree, node) for tree in RANDOM_TREES for node in (3, len(tree.tokens) - 1)]
    text = TEXT[:9]
    for tree, node in cases:
        session.extend(text)
        session.branch(tree.tokens, tree.parents)
        path = tree.path(node)
        before = session.cache.keys.copy()
        session.keep(path)
        np.testing.assert_array_equal(session.cache.keys, before, "keys were moved")
        longer = tree.after(text, path)
        assert session.length == len(longer)
        session.calls.clear()
        longer = np.append(longer, 77)
        close(session.extend(longer), fused.extend(longer), precision)
        assert session.calls == [(len(longer) - 1, 1)], "nothing of the path was fed again"
        every = [*session.cache.path.tolist(), *session.cache.free(10**6).tolist()]
        assert sorted(every) == list(range(tiny.CONTEXT))


def test_branch_after_branch_writes_a_text(precision: str, tiny_bundle: Path) -> None:
    """Twenty rounds on slots that are soon in no order; then the text is read in full elsewhere."""
    session, fused = opened(tiny_bundle, precision), plain(tiny_bundle, precision)
    text = TEXT[:3]
    session.extend(text)
    noise = np.random.default_rng(9)
    for seed in range(20):
        tree = random_tree(100 + seed)
        found = session.branch(tree.tokens, tree.parents)
        node = int(noise.integers(ROOT, len(tree.tokens)))
        if node != ROOT:
            close(found[node], fused.extend(tree.after(text, tree.path(node)))[0], precision)
        session.keep(tree.path(node))
        text = tree.after(text, tree.path(node))
        assert session.length == len(text)
    assert session.cache.path.tolist() != sorted(session.cache.path.tolist())
    session.calls.clear()
    close(session.extend(text, num_logits=1), fused.extend(text), precision)
    assert session.calls == [(len(text) - 1, 1)]


def test_what_is_no_path_is_not_kept(tiny_bundle: Path) -> None:
    tree = Tree([5, 6, 7, 8], [ROOT, 0, 0, ROOT])
    paths = {(), (0,), (0, 1), (0, 2), (3,)}
    session = opened(tiny_bundle)
    every = [path for count in range(4) for path in itertools.product(range(-1, 5), repeat=count)]
    for path in every:
        session.extend(TEXT[:5])
        session.branch(tree.tokens, tree.parents)
        if path in paths:
            session.keep(path)
            assert session.length == 5 + len(path)
        else:
            with pytest.raises(ValueError, match="no path of the last branch"):
                session.keep(path)
            assert session.length == 5


def test_a_branch_is_kept_once_and_only_the_last(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle)
    session.extend(TEXT[:5])
    session.branch([1, 2], [ROOT, 0])
    session.branch([3], [ROOT])
    for path in ([0, 1], [1]):
        with pytest.raises(ValueError, match="no path of the last branch"):
            session.keep(path)
        session.branch([3], [ROOT])
    session.keep([0])
    with pytest.raises(ValueError, match="no path of the last branch"):
        session.keep([0])
    session.branch([4], [ROOT])
    session.crop(5)
    with pytest.raises(ValueError, match="no path of the last branch"):
        session.keep([0])
    session.branch([4], [ROOT])
    session.crop(5)
    session.crop(9)
    session.keep([0])
    session.branch([4], [ROOT])
    session.use(Arena(session.geometry, 8, tiny.CONTEXT))
    with pytest.raises(ValueError, match="no path of the last branch"):
        session.keep([0])


def test_a_branch_that_fails_leaves_nothing_to_keep(tiny_bundle: Path) -> None:
    session, text = opened(tiny_bundle), TEXT[:8]
    session.extend(text)
    session.branch([1, 2, 3], [ROOT, 0, 1])
    with pytest.raises(BundleError):
        session.branch([1, 2, 3, 4, 5, 1 << 30], [ROOT] * 6)
    with pytest.raises(ValueError, match="no path of the last branch"):
        session.keep([0, 1])
    assert session.branch([], []).shape == (0, session.vocabulary)
    close(session.extend(TEXT[:9])[0], plain(tiny_bundle).extend(TEXT[:9])[0])


def test_stop_ends_every_later_call(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle)
    session.stop()
    with pytest.raises(BundleError, match="terminate"):
        session.extend(TEXT[:9])


def test_a_tree_past_the_context_is_refused(tiny_bundle: Path) -> None:
    text, tree = TEXT[:8], Tree([1, 2, 3, 4, 5, 6], [ROOT, 0, 1, ROOT, 3, ROOT])
    wanted = plain(tiny_bundle).extend(tree.after(text, [0, 1, 2]))[0]
    for context in (11, 12):  # the deepest path counts, not the nodes
        session = opened(tiny_bundle, context=context)
        session.extend(text)
        close(session.branch(tree.tokens, tree.parents)[2], wanted)
    session = opened(tiny_bundle, context=10)
    session.extend(text)
    with pytest.raises(ContextError, match="tree of 6 nodes does not fit behind 8 tokens"):
        session.branch(tree.tokens, tree.parents)
    assert session.length == 8


def test_a_tree_past_the_slots_is_refused(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle)
    session.extend(TEXT[: tiny.CONTEXT - 3])
    session.branch([1, 2, 3], [ROOT] * 3)
    with pytest.raises(ContextError, match=r"tree of 4 nodes .* in 256 slots"):
        session.branch([1, 2, 3, 4], [ROOT] * 4)
