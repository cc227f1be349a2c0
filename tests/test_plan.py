"""A plan names graphs by role, flavour and precision, and knows which share a folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from export.plan import (
    KNOWN_GRAPHS,
    Plan,
    check_graphs,
    choose_exit,
    choose_graphs,
    plan_for,
    printable,
)
from export.trained import Trained
from runtime.bundle_files import file_sha256
from runtime.errors import BuildError, UsageError
from runtime.graph_names import DEFAULT_GRAPHS
from runtime.manifest import Geometry, Source

PLAN = Plan("tiny", Source("gguf", "tiny.gguf", "0" * 64, "unknown"))


def geometry(hidden: int = 64, intermediate: int = 96, head_size: int = 16) -> Geometry:
    return Geometry(2, hidden, intermediate, 4, 2, head_size, 271, 256, 1e4, 1e-5)


def test_the_usual_graphs_are_known_ones() -> None:
    assert check_graphs(DEFAULT_GRAPHS) == DEFAULT_GRAPHS
    assert len(KNOWN_GRAPHS) == 24


def test_graphs_of_one_precision_share_a_folder() -> None:
    assert PLAN.folders == {
        "target/fp32": {"target": ["fused", "portable"]},
        "target/int8": {"target": ["fused", "portable"]},
        "draft/int4": {"draft": ["fused"]},
    }
    assert PLAN.place("draft", "portable-fp32") == "target/fp32"


def test_a_draft_has_a_folder_where_the_target_has_none() -> None:
    plan = choose_graphs(
        PLAN, ["target/fused-int4", "draft/fused-int4", "draft/portable-fp16"], draft=True
    )
    assert plan.folders == {
        "target/int4": {"target": ["fused"]},
        "draft/int4": {"draft": ["fused"]},
        "draft/fp16": {"draft": ["portable"]},
    }


def test_a_draft_adds_its_flavour_to_the_targets_folder() -> None:
    plan = choose_graphs(PLAN, ["target/fused-fp32", "draft/portable-fp32"], draft=True)
    assert plan.folders == {"target/fp32": {"target": ["fused", "portable"]}}


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    path = tmp_path / "a\ndraft"
    save_file({"norm": np.ones(3, np.float32)}, path, {"licence": "MIT\x1b"})
    return path


def test_a_draft_from_a_file_has_graphs_of_its_own(draft: Path) -> None:
    plan = choose_graphs(PLAN, [], draft=draft)
    assert plan.graphs == (*DEFAULT_GRAPHS[:4], "draft/fused-int8", "draft/portable-fp32")
    assert plan.folders == {
        "target/fp32": {"target": ["fused", "portable"], "draft": ["portable"]},
        "target/int8": {"target": ["fused", "portable"], "draft": ["fused"]},
    }
    source = Source("safetensors", "a\ufffddraft", file_sha256(draft), "MIT\ufffd")
    assert plan.draft == Trained(draft, source)
    assert plan.fitted(geometry(hidden=80)) == plan
    assert choose_graphs(plan, [], draft=True) == plan
    assert choose_graphs(plan, [], draft=False) == PLAN.without_draft()
    assert choose_graphs(plan, ["target/fused-fp32"], draft=True).draft is None


def test_a_draft_from_a_file_takes_the_graphs_that_are_named(draft: Path) -> None:
    names = ["target/fused-int4", "draft/fused-int4", "draft/portable-fp16"]
    plan = choose_graphs(PLAN, names, draft=draft)
    assert plan.graphs == tuple(names)
    # It is another model than its target, so even in int4 both may lie in one folder.
    assert plan.folders == {
        "target/int4": {"target": ["fused"], "draft": ["fused"]},
        "draft/fp16": {"draft": ["portable"]},
    }
    with pytest.raises(UsageError, match="needs a graph: name one, as in draft/fused-int8"):
        choose_graphs(PLAN, ["target/fused-int8"], draft=draft)
    draft.write_bytes(b"no draft")
    with pytest.raises(BuildError, match="no safetensors file"):
        choose_graphs(PLAN, [], draft=draft)


def test_graphs_are_chosen_once_each_and_in_the_order_given() -> None:
    names = ["target/fused-int8", "target/fused-fp16", "target/fused-int8"]
    assert choose_graphs(PLAN, names, draft=True).graphs == tuple(names[:2])
    assert choose_graphs(PLAN, [], draft=True) == PLAN
    alone = choose_graphs(PLAN, [], draft=False)
    assert alone.graphs == DEFAULT_GRAPHS[:4]
    assert alone.keys("draft") == ()


def test_usual_graphs_are_those_that_there_would_be(draft: Path) -> None:
    plan = choose_graphs(PLAN, ["target/gpu-fp16", "draft/usual"], draft=True)
    assert plan.graphs == ("target/gpu-fp16", "draft/fused-int4", "draft/portable-fp32")
    assert plan.fitted(geometry(hidden=80)).graphs == ("target/gpu-fp16",), "still left to be had"
    named = choose_graphs(PLAN, ["target/usual", "draft/npu-int8"], draft=True)
    assert named.graphs == (*DEFAULT_GRAPHS[:4], "draft/npu-int8")
    assert not named.optional
    trained = choose_graphs(PLAN, ["target/gpu-fp16", "draft/usual"], draft=draft)
    assert trained.graphs == ("target/gpu-fp16", "draft/fused-int8", "draft/portable-fp32")
    alone = choose_graphs(PLAN.without_draft(), ["target/gpu-fp16", "draft/usual"], draft=True)
    assert alone.graphs == ("target/gpu-fp16",)
    with pytest.raises(UsageError, match="there is to be no draft"):
        choose_graphs(PLAN, ["target/usual", "draft/usual"], draft=False)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["target/fused-int3"], r"no graph 'target/fused-int3'; there is target/fused-fp32, "),
        (["fused-int8"], "no graph 'fused-int8'"),
        (["target/portable-int4"], "no graph"),
        ([""], "no graph ''"),
        (["draft/fused-int4"], "The target needs a graph"),
    ],
)
def test_unknown_graphs_are_refused_with_the_list(names: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_graphs(PLAN, names, draft=True)


def test_a_named_draft_graph_and_no_draft_contradict() -> None:
    with pytest.raises(UsageError, match="drop one"):
        choose_graphs(PLAN, ["target/fused-fp32", "draft/fused-int4"], draft=False)


@pytest.mark.parametrize(
    "sizes",
    [geometry(hidden=80), geometry(intermediate=100), geometry(head_size=10)],
)
def test_no_draft_where_int4_cannot_have_the_sizes(sizes: Geometry) -> None:
    assert PLAN.fitted(sizes).graphs == DEFAULT_GRAPHS[:4]
    named = choose_graphs(PLAN, DEFAULT_GRAPHS, draft=True)
    assert named.fitted(sizes) == named


def test_a_draft_where_int4_can_have_them() -> None:
    assert PLAN.fitted(geometry()) == PLAN


def test_an_exit_that_is_named_needs_a_fused_graph_and_the_recipes_own_goes_without_one() -> None:
    plan = replace(PLAN, graphs=("target/fused-int8",), early_exit_layer=5)
    assert choose_exit(plan, None) == plan
    assert choose_exit(plan, 7).early_exit_layer == 7
    static = replace(plan, graphs=("target/portable-fp32", "draft/fused-int4"))
    assert choose_exit(static, None).early_exit_layer is None
    with pytest.raises(UsageError, match="needs a fused graph of the target"):
        choose_exit(static, 7)
    with pytest.raises(UsageError, match="after layer 0; it must be 1 or later"):
        choose_exit(plan, 0)


def test_a_file_gives_its_name_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "ein Modell\n.v2.gguf"
    path.write_bytes(b"GGUF")
    plan = plan_for(path)
    assert plan.name == "ein Modell\ufffd.v2"
    assert plan.source.file == "ein Modell\ufffd.v2.gguf"
    assert plan.graphs == DEFAULT_GRAPHS


def test_what_cannot_be_printed_is_replaced() -> None:
    assert printable("ü \ud800\x1b[2J") == "ü ?\ufffd[2J"
