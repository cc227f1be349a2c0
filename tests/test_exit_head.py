"""An exit's graph reads a hidden state as the model's own lens, norm and head do in numpy."""

from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from export import reference
from export.exit_head import TOP, Exit, build_exit_head
from export.model import Model
from export.writer import GraphWriter, WeightFile
from runtime.errors import BundleError
from runtime.exit_head import ExitHead
from runtime.manifest import INTEGER_PROBE_FILE, Precision
from tests import tiny
from tests.graphs import BOUNDS, as_stored, tiny_model

Tokens = NDArray[np.int64]
HIDDEN = np.random.default_rng(8).standard_normal((5, tiny.HIDDEN)).astype(np.float32)
LENS = np.random.default_rng(9).standard_normal((tiny.HIDDEN, tiny.HIDDEN)).astype(np.float16)
LIST: Tokens = np.arange(1, len(tiny.vocabulary()), 3)


def built(
    folder: Path,
    model: Model,
    precision: str,
    *,
    lens: NDArray[np.float16] | None = None,
    tokens: Tokens | None = None,
) -> ExitHead:
    real = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    with closing(WeightFile(folder / "weights.data")) as weights:
        writer = GraphWriter(weights, real_type=real)
        graph = build_exit_head(writer, model, precision, Exit(1, lens, tokens))
    onnx.save(graph, folder / "exit.onnx")
    return ExitHead(folder / "exit.onnx", threads=1)


def due(
    model: Model, rows: NDArray[np.float32], lens: NDArray[np.float16] | None, listed: Tokens
) -> NDArray[np.float32]:
    """The log-probabilities [n, listed] by numpy."""
    if lens is not None:
        rows = rows @ lens.astype(np.float32).T
    logits = reference.read_off(model, rows)[:, listed]
    found: NDArray[np.float32] = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return found


@pytest.mark.parametrize("head", ["tied", "own"])
@pytest.mark.parametrize("listed", [None, LIST], ids=["whole", "list"])
@pytest.mark.parametrize("lens", [None, LENS], ids=["plain", "lens"])
@pytest.mark.parametrize("precision", get_args(Precision))
def test_guesses_are_the_best_of_the_head(
    precision: Precision,
    lens: NDArray[np.float16] | None,
    listed: Tokens | None,
    head: str,
    tmp_path: Path,
) -> None:
    model = tiny_model(tmp_path, tied=head == "tied")
    read = built(tmp_path, model, precision, lens=lens, tokens=listed)
    assert read.most == TOP
    tokens, shares = read.guesses(HIDDEN, top=TOP)
    assert [found.dtype for found in (tokens, shares)] == [np.int64, np.float32]
    assert tokens.shape == shares.shape == (len(HIDDEN), TOP)
    known = np.arange(len(tiny.vocabulary())) if listed is None else listed
    wanted = due(as_stored(model, precision), HIDDEN, lens, known)
    bound = 2 * BOUNDS[precision] * float(np.ptp(wanted))
    columns = np.searchsorted(known, tokens)
    np.testing.assert_array_equal(known[columns], tokens)
    np.testing.assert_allclose(np.take_along_axis(wanted, columns, axis=1), shares, atol=bound)
    best = np.sort(wanted, axis=1)[:, ::-1][:, :TOP]
    np.testing.assert_allclose(shares, best, atol=bound)
    assert (np.diff(shares, axis=1) <= 0).all()


def test_fewer_are_the_first_of_them_and_a_short_head_gives_all(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    tokens, shares = built(tmp_path, model, "fp32", tokens=LIST[:5]).guesses(HIDDEN, top=TOP)
    assert tokens.shape == (len(HIDDEN), 5)
    assert np.sort(tokens, axis=1).tolist() == [LIST[:5].tolist()] * len(HIDDEN)
    np.testing.assert_allclose(np.exp(shares).sum(axis=1), 1, rtol=1e-5)
    head = ExitHead(tmp_path / "exit.onnx", threads=1)
    one, its_share = head.guesses(HIDDEN[2:3], top=1)
    assert (one.tolist(), its_share.tolist()) == (
        [tokens[2, :1].tolist()],
        [shares[2, :1].tolist()],
    )


def test_of_equals_the_lowest_token_is_first(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    tokens, _ = built(tmp_path, model, "fp32").guesses(
        np.zeros((1, tiny.HIDDEN), np.float32), top=8
    )
    assert tokens.tolist() == [list(range(8))]


def test_the_list_and_the_table_are_stored_once(tmp_path: Path) -> None:
    """Beside a draft whose head is about the same tokens."""
    model = tiny_model(tmp_path)
    many = np.arange(260)  # a list that is not small enough to stay in a graph
    with closing(WeightFile(tmp_path / "weights.data")) as weights:
        graphs = [
            build_exit_head(GraphWriter(weights, model=name), model, "int8", Exit(1, tokens=many))
            for name in ("", "draft")
        ]
        places = [
            {
                each.name: [entry.value for entry in each.external_data]
                for each in graph.graph.initializer
            }
            for graph in graphs
        ]
    assert places[0]["head_tokens"] == places[1]["head_tokens"] != []
    assert places[0]["head"] == places[1]["head"] != []


def test_it_works_in_another_thread(tmp_path: Path) -> None:
    head = built(tmp_path, tiny_model(tmp_path), "int8")
    wanted = head.guesses(HIDDEN, top=4)
    found: list[NDArray[Any]] = []
    thread = Thread(target=lambda: found.extend(head.guesses(HIDDEN, top=4)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize(
    "rows",
    [HIDDEN[:, 1:], HIDDEN[0], HIDDEN.astype(np.float64)],
    ids=["narrow", "one axis", "double"],
)
def test_rows_that_do_not_fit_are_refused(rows: NDArray[Any], tmp_path: Path) -> None:
    head = built(tmp_path, tiny_model(tmp_path), "fp32")
    with pytest.raises(BundleError, match="build the bundle again"):
        head.guesses(rows, top=1)


def test_another_graph_is_refused(tiny_bundle: Path) -> None:
    with pytest.raises(BundleError, match="no graph of an early exit"):
        ExitHead(tiny_bundle / "target/int8" / INTEGER_PROBE_FILE, threads=1)


def test_a_stopped_one_fails_at_every_later_call(tmp_path: Path) -> None:
    head = built(tmp_path, tiny_model(tmp_path), "fp32")
    head.stop()
    with pytest.raises(BundleError, match="terminate"):
        head.guesses(HIDDEN, top=1)
