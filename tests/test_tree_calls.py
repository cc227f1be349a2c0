"""A call that carries branches gives every row what its own text alone gives, in both flavours."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graph import build_graphs
from runtime.branches import NO_BRANCHES, Branches
from runtime.errors import BundleError, ContextError
from runtime.flavours import open_graph
from runtime.fused import FusedSession
from runtime.manifest import Flavour, Manifest, RoleName
from runtime.portable import PortableSession
from runtime.session import GraphSession
from tests import tiny
from tests.drafts import tiny_draft
from tests.graphs import FP16_BOUND, fused, portable, tiny_model
from tests.table import paths

Tokens = NDArray[np.int64]
Array = NDArray[np.float32]
Session = GraphSession[Any]
VOCABULARY = len(tiny.vocabulary())
TEXT: Tokens = np.random.default_rng(5).integers(0, VOCABULARY, tiny.CONTEXT)
# What the order of sums may cost, of logits that range over 11 to 16; int8 tips a step of a row.
BOUNDS = {"fp32": 1e-4, "int8": 0.02}
CASES: list[tuple[Flavour, str]] = [
    ("fused", "fp32"),
    ("fused", "int8"),
    ("portable", "fp32"),
    ("portable", "int8"),
]
every_graph = pytest.mark.parametrize(("flavour", "precision"), CASES)
same = np.testing.assert_array_equal


def opened(bundle: Path, flavour: Flavour, precision: str, **settings: Any) -> Session:
    manifest = Manifest.load(bundle)
    graph = manifest.graph("target", precision, flavour=flavour)
    settings = {"threads": 1} | settings
    return open_graph(bundle, graph, manifest.target.geometry, **settings)


class Alone:
    """The plain path: each text as a chain of its own, computed once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[bytes, Array] = {}

    def row(self, text: Tokens) -> Array:
        key = text.tobytes()
        if key not in self._known:
            self._known[key] = self._session.extend(text)[0].copy()
        return self._known[key]

    def rows(self, text: Tokens, num_logits: int, branches: Branches) -> Array:
        ends = range(len(text) - num_logits + 1, len(text) + 1)
        every = [text[:end] for end in ends] + paths(text, branches)
        return np.stack([self.row(one) for one in every])


def check(found: Array, wanted: Array, bound: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)
    same(found.argmax(axis=1), wanted.argmax(axis=1))


def forest(length: int, count: int, seed: int) -> Branches:
    """Nodes behind a text, half of them anywhere in it, from cached tokens to the last."""
    noise = np.random.default_rng(seed)
    parents = [
        int(noise.integers(length, length + node))
        if node and noise.random() < 0.5
        else int(noise.integers(0, length))
        for node in range(count)
    ]
    return Branches(tuple(noise.integers(0, VOCABULARY, count).tolist()), tuple(parents))


@every_graph
def test_every_small_tree_behind_every_part_of_a_text(
    flavour: Flavour, precision: str, tiny_bundle: Path
) -> None:
    """Nodes hang from cached tokens, from those just fed, from the last, and from each other."""
    session = opened(tiny_bundle, flavour, precision)
    alone = Alone(opened(tiny_bundle, "fused", precision))
    text = TEXT[:4]
    shapes = [
        parents
        for count in (1, 2)
        for parents in itertools.product(*(range(len(text) + node) for node in range(count)))
    ]
    shapes += [(1, 4, 5), (3, 4, 4), (0, 1, 2), (2, 3, 4)]
    for cached, parents in itertools.product((0, 1, 3), shapes):
        branches = Branches((7, 8, 9)[: len(parents)], parents)
        for num_logits in {1, len(text) - cached}:
            session.crop(0)
            if cached:
                session.extend(text[:cached])
            found = session.extend(text, num_logits=num_logits, branches=branches)
            assert found.shape == (num_logits + len(parents), session.vocabulary)
            check(found, alone.rows(text, num_logits, branches), BOUNDS[precision])
            assert session.length == len(text), "nodes are no part of the text"


@every_graph
def test_the_builder_measured_what_a_tree_costs(
    flavour: Flavour, precision: str, tiny_bundle: Path
) -> None:
    parity = Manifest.load(tiny_bundle).graph("target", precision, flavour=flavour).parity
    assert 0 < parity.tree_difference < BOUNDS[precision]


@every_graph
@pytest.mark.parametrize("count", [5, 20, 48])
def test_wide_trees(flavour: Flavour, precision: str, count: int, tiny_bundle: Path) -> None:
    session = opened(tiny_bundle, flavour, precision)
    alone = Alone(opened(tiny_bundle, "fused", precision))
    for seed, (cached, end) in enumerate([(0, 5), (30, 31), (30, 37), (100, 101)]):
        text, branches = TEXT[:end], forest(end, count, seed)
        session.crop(0)
        if cached:
            session.extend(text[:cached])
        found = session.extend(text, num_logits=1, branches=branches)
        check(found, alone.rows(text, 1, branches), BOUNDS[precision])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_rows_of_the_text_are_the_same_to_the_last_bit_in_a_fused_graph(
    precision: str, threads: int, tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, "fused", precision, threads=threads)
    wanted = opened(tiny_bundle, "fused", precision).extend(TEXT[:40], num_logits=40).copy()
    for cached, fed in itertools.product((0, 1, 2, 20), (1, 2, 3, 8, 16)):
        for count in (1, 2, 7, 30):
            session.crop(0)
            if cached:
                session.extend(TEXT[:cached])
            end = cached + fed
            branches = forest(end, count, count)
            found = session.extend(TEXT[:end], num_logits=fed, branches=branches)
            same(found[:fed], wanted[cached:end], err_msg=f"{cached}, {fed}, {count}")
            # What is cached is what the text alone leaves, too.
            same(session.extend(TEXT[: end + 1])[0], wanted[end])


@every_graph
def test_a_long_text_with_branches_goes_in_chunks(
    flavour: Flavour, precision: str, tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, flavour, precision)
    text, branches = TEXT[:200], forest(200, 9, 1)
    found = session.extend(text, num_logits=3, branches=branches)
    alone = Alone(opened(tiny_bundle, "fused", precision))
    check(found, alone.rows(text, 3, branches), BOUNDS[precision])


@every_graph
def test_round_after_round_only_what_is_new_is_fed(
    flavour: Flavour, precision: str, tiny_bundle: Path
) -> None:
    """The text goes on by its own tokens or by a branch's, whose nodes are then fed as text."""
    session = opened(tiny_bundle, flavour, precision)
    alone = Alone(opened(tiny_bundle, "fused", precision))
    fed: list[int] = []

    @contextmanager
    def noted(part: str, rows: int) -> Iterator[None]:
        assert part == "whole"
        fed.append(rows)
        yield

    session.pace = noted
    text, noise = TEXT[:3], np.random.default_rng(9)
    for seed in range(20):
        uncached = len(text) - session.cache.shared_with(text)
        branches = forest(len(text), 6, 100 + seed)
        fed.clear()
        found = session.extend(text, branches=branches)
        check(found, alone.rows(text, 1, branches), BOUNDS[precision])
        assert sum(fed) == uncached + len(branches)
        path = paths(text, branches)[int(noise.integers(0, len(branches)))]
        text = np.append(path, TEXT[seed])


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("role", "precision"), [("target", "fp32"), ("target", "int8"), ("draft", "int8")]
)
def test_the_reference_models_text_keeps_its_bits_beside_branches(
    role: RoleName, precision: str, smollm: Path
) -> None:
    """Nodes are as far from their chains as the manifest says, within twice."""
    manifest = Manifest.load(smollm)
    model, key = manifest.role(role), f"fused-{precision}"
    file = smollm / model.graphs[key].file
    plain, packed = (FusedSession(file, model.geometry, threads=1, context=256) for _ in range(2))
    text = (np.arange(120) * 7919 + 11) % model.geometry.vocabulary
    bound = 2 * model.graphs[key].parity.tree_difference
    for cached, fed in ((0, 3), (1, 1), (60, 1), (60, 4), (100, 8)):
        part = text[: cached + fed]
        for session in (plain, packed):
            session.crop(0)
            if cached:
                session.extend(text[:cached])
        wanted = plain.extend(part, num_logits=fed).copy()
        branches = forest(len(part), 6, fed)
        found = packed.extend(part, num_logits=fed, branches=branches).copy()
        same(found[:fed], wanted)
        wanted = Alone(plain).rows(part, 1, branches)[1:]
        np.testing.assert_allclose(found[fed:], wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("rows", [(8,), (64,), (8, 64)])
def test_a_call_of_any_portable_graphs(rows: tuple[int, ...], tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    graph = manifest.graph("target", "fp32", flavour="portable")
    graphs = {number: tiny_bundle / graph.rows[str(number)] for number in rows}
    session = PortableSession(graphs, manifest.target.geometry, slots=256, threads=1)
    alone = Alone(opened(tiny_bundle, "fused", "fp32"))
    for seed, count in enumerate((1, 3, 4, 11, 66)):
        text, branches = TEXT[: 9 + seed], forest(9 + seed, count, seed)
        found = session.extend(text, num_logits=1, branches=branches)
        check(found, alone.rows(text, 1, branches), BOUNDS["fp32"])


@pytest.mark.parametrize("flavour", ["fused", "portable"])
def test_float16(flavour: Flavour, tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    build_graphs(model, "fp16", tmp_path, flavours=[flavour])
    session = (fused if flavour == "fused" else portable)(tmp_path, model)
    text, branches = TEXT[:9], forest(9, 7, 2)
    found = session.extend(text, branches=branches).copy()
    wanted = Alone(session).rows(text, 1, branches)
    lost = np.abs(found - wanted).max()
    assert lost < FP16_BOUND * np.ptp(wanted)


@pytest.mark.parametrize(("flavour", "bound"), [("fused", 0.02), ("portable", 0.02)])
def test_masks_behind_guesses_at_every_place_of_a_draft(
    flavour: Flavour, bound: float, tmp_path: Path
) -> None:
    """A pass: what is not cached, the chain, and of each guess f a branch f, m1, m2."""
    draft = tiny_draft(tiny_model(tmp_path))
    build_graphs(draft, "int8", tmp_path, flavours=["fused", "portable"], inexact=True)
    session = (fused if flavour == "fused" else portable)(tmp_path, draft)
    alone = Alone(fused(tmp_path, draft))
    masks = tuple(draft.mask_tokens)
    session.extend(TEXT[:20])
    text = TEXT[:24]
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    for place in (19, 19, 20, 22, 23, 23, 5):
        first = len(text) + len(tokens)
        parents += (place, *range(first, first + len(masks)))
        tokens += (3 + place, *masks)
    tokens, parents = (*tokens, masks[0]), (*parents, 21)  # masks alone, for any guess
    branches = Branches(tokens, parents)
    found = session.extend(text, num_logits=4, branches=branches)
    wanted = alone.rows(text, 4, branches)
    assert found.shape == wanted.shape == (4 + 22, session.logits_width)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)
    assert session.length == 24


@every_graph
@pytest.mark.parametrize("context", [12, tiny.CONTEXT])
def test_text_and_nodes_fill_the_context_and_not_more(
    context: int, flavour: Flavour, precision: str, tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, flavour, precision, context=context)
    alone = Alone(opened(tiny_bundle, "fused", precision))
    text, calls = TEXT[: context - 4], list[int]()
    session.extend(text[:-2])
    chain = Branches((1, 2, 3, 4), tuple(range(len(text) - 1, len(text) + 3)))
    found = session.extend(text, num_logits=2, branches=chain)
    check(found, alone.rows(text, 2, chain), BOUNDS[precision])

    @contextmanager
    def noted(_part: str, rows: int) -> Iterator[None]:
        calls.append(rows)
        yield

    session.pace = noted
    other = np.append(TEXT[1:5], TEXT[4 : context - 4])
    for branches in (Branches((1,) * 5, (0,) * 5), Branches((1,) * 300, (0,) * 300)):
        message = (
            f"A text of {len(text)} tokens with {len(branches)} nodes behind it does not fit in "
            f"the context of {context}"
        )
        with pytest.raises(ContextError, match=message):
            session.extend(other, branches=branches)
    with pytest.raises(ContextError, match=f"A text of {context + 1} tokens"):
        session.extend(np.arange(context + 1) % 9, branches=Branches((1,), (0,)))
    with pytest.raises(ValueError, match="has the parent"):
        session.extend(other, branches=Branches((1,), (len(other),)))
    assert (calls, session.length) == ([], len(text))
    assert session.cache.shared_with(text) == len(text), "nothing was forgotten"
    full = session.extend(TEXT[:context], branches=NO_BRANCHES)
    check(full, alone.rows(TEXT[:context], 1, NO_BRANCHES), BOUNDS[precision])


@every_graph
def test_a_call_that_fails_leaves_the_text_as_it_was(
    flavour: Flavour, precision: str, tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, flavour, precision)
    session.extend(TEXT[:8])
    with pytest.raises(BundleError):
        session.extend(TEXT[:9], branches=Branches((1, 2, 3, 1 << 30), (7, 8, 8, 8)))
    assert session.length == 8
    alone = Alone(opened(tiny_bundle, "fused", precision))
    check(session.extend(TEXT[:9]), alone.rows(TEXT[:9], 1, NO_BRANCHES), BOUNDS[precision])
