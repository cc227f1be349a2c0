"""What a session takes is known before it is loaded, and a draft without room is left out."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from export.__main__ import main as export_main
from runtime import memory, open_session
from runtime.errors import UsageError
from runtime.manifest import FileEntry, Geometry, Graph, Manifest, Parity, Role, Source

GEOMETRY = Geometry(2, 64, 96, 4, 2, 16, 271, 256, 1e4, 1e-5)
GB = 1_000_000_000
LIMITED = "9:memory:/box/inner\n0::/\n"


def manifest(precision: str = "int8", **changes: Any) -> Manifest:
    graph = Graph(
        file=f"target/{precision}/fused.onnx",
        flavour="fused",
        precision=precision,  # type: ignore[arg-type]
        parity=Parity(0.0, 1.0, 1, 0.0, 0.0),
        **changes,
    )
    sizes = {
        "tokenizer.json": 1000,
        f"target/{precision}/fused.onnx": 5,
        f"target/{precision}/portable-8-rows.onnx": 7,
        f"target/{precision}/weights.data": 1_000_000,
        "draft/int4/weights.data": 1 << 40,
    }
    return Manifest(
        name="tiny",
        source=Source("gguf", "tiny.gguf", "0" * 64, "unknown"),
        files={name: FileEntry("0" * 64, size) for name, size in sizes.items()},
        target=Role(GEOMETRY, {f"{graph.flavour}-{precision}": graph}, [2]),
    )


def needed(found: Manifest, context: int = 256, provider: str = "CPU") -> int:
    (graph,) = found.target.graphs.values()
    return memory.session_bytes(found, graph, found.target, context=context, provider=provider)


def test_a_session_takes_its_own_weights_and_its_cache() -> None:
    rows = memory.ROWS * (8 * 64 + 4 * 96) * 4
    cached = 257 * (2 * 2 * 2 * 16) * 4
    weights = int(1_000_005 * memory.LOADED_SHARE)
    assert needed(manifest()) == pytest.approx(
        weights + memory.SESSION_BYTES + rows + cached, abs=2
    )
    assert needed(manifest(), 255) == needed(manifest()) - 2 * 2 * 2 * 16 * 4
    assert needed(manifest("fp16")) < needed(manifest("fp32"))
    assert memory.text_bytes(manifest()) == 1000 * memory.TOKENIZER_SHARE


def test_of_weights_that_two_models_share_each_takes_its_own() -> None:
    found = manifest()
    deep = replace(GEOMETRY, layers=6)
    shallow = replace(GEOMETRY, layers=1)
    table, layer = 271 * 64, (GEOMETRY.weights - 271 * 64) // 2
    draft = Role(shallow, dict(found.target.graphs), [2])
    found = replace(found, target=replace(found.target, geometry=deep), draft=draft)
    (graph,) = found.target.graphs.values()
    for geometry, layers in ((deep, 6), (shallow, 1)):
        mine = 1_000_005 * (table + layers * layer) // (table + 7 * layer)
        role = replace(draft, geometry=geometry)
        assert memory._weights_bytes(found, graph, role) == (mine, 0)
    alone = replace(found, draft=replace(draft, geometry=deep))
    assert memory._weights_bytes(alone, graph, found.target) == (1_000_005, 0)


def test_a_head_about_some_tokens_takes_their_rows_beside_the_table() -> None:
    whole = manifest()
    short = replace(whole.target, head_tokens="draft/head-tokens.npy")
    files = {**whole.files, "draft/head-tokens.npy": FileEntry("0" * 64, 4 * 40)}
    copied = int(1_000_005 * 40 * 64 / GEOMETRY.weights)
    assert needed(replace(whole, files=files, target=short)) == needed(whole) + copied


def early(found: Manifest) -> int:
    """What leaving the target early adds."""
    (graph,) = found.target.graphs.values()
    settings: dict[str, Any] = {"context": 256, "provider": "CPU"}
    left = memory.session_bytes(found, graph, found.target, leaves_early=True, **settings)
    return left - needed(found)


@pytest.mark.parametrize(("precision", "real"), [("int8", 4), ("fp32", 4), ("fp16", 2)])
def test_a_target_that_is_left_early_takes_a_second_graph_and_a_head(
    precision: str, real: int
) -> None:
    rows = memory.ROWS * (8 * 64 + 4 * 96) * 4
    sessions = 2 * memory.SESSION_BYTES + rows + 64 * 64 * real
    found = manifest(precision)
    assert early(found) == sessions + 1_000_005 * 271 * 64 // GEOMETRY.weights
    files = {**found.files, "draft/head-tokens.npy": FileEntry("0" * 64, 4 * 40)}
    # A draft of its own folder: the weights beside the target's graphs are the target's.
    draft = Role(replace(GEOMETRY, layers=1), {}, [2], head_tokens="draft/head-tokens.npy")
    short = replace(found, files=files, draft=draft)
    assert early(short) == sessions + 1_000_005 * 40 * 64 // GEOMETRY.weights


def test_a_portable_graph_is_loaded_for_each_number_of_rows() -> None:
    files = {"4": "target/int8/fused.onnx", "64": "target/int8/fused.onnx"}
    portable = manifest(rows=files, context=64)
    assert needed(portable, 8) == needed(portable, 256)
    assert needed(portable) > 2 * 1_000_000 * memory.LOADED_SHARE
    assert needed(portable, provider="OpenVINO") > 10 * needed(portable) / 14


def test_a_shortage_has_both_numbers() -> None:
    assert memory.shortage(GB, GB) is None
    assert memory.shortage(GB, None) is None
    assert memory.shortage(3 * GB // 2, GB) == (
        "about 1.50 GB of memory are needed and 1.00 GB are available"
    )


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are asked in other ways")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": "MemFree: 1 kB\nMemAvailable:    2000 kB\n"}, 2_048_000),
        ({"proc/meminfo": "MemAvailable: many\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "10\n",
                "sys/fs/cgroup/a/memory.max": "5000\n",
                "sys/fs/cgroup/a/memory.current": "2000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 7\ninactive_file 300\n",
            },
            3300,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 1 kB\n",
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "5000\n",
                "sys/fs/cgroup/memory.current": "9000\n",
            },
            0,
        ),
        (
            {
                "proc/self/cgroup": LIMITED,
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "4000\n",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "1000\n",
                "sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 500\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
            },
            3500,
        ),
        ({"proc/self/cgroup": "odd\n:::\n", "proc/meminfo": "\xff"}, None),
    ],
)
def test_what_linux_says_is_available(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    assert memory.available_bytes(machine(tmp_path, files)) == expected


def test_this_machine_has_some() -> None:
    found = memory.available_bytes()
    assert found is None or found > 50_000_000


def noting(said: list[str]) -> Callable[[str], None]:
    """Keeps what is said of memory and drafts; that a first start tries the machine is not."""
    return lambda line: None if line.startswith("First start") else said.append(line)


@pytest.fixture
def short(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Opens the tiny bundle with so many megabytes of memory, telling what was said."""

    def open_with(megabytes: int | None, **settings: Any) -> tuple[Any, list[str]]:
        size = None if megabytes is None else megabytes * 1_000_000
        monkeypatch.setattr(memory, "available_bytes", lambda: size)
        said: list[str] = []
        session = open_session(
            tiny_bundle, cache_dir=tmp_path, threads=1, progress=noting(said), **settings
        )
        return session, said

    return open_with


def test_both_models_where_there_is_room_or_nobody_knows(short: Callable[..., Any]) -> None:
    for megabytes in (None, 100):
        session, said = short(megabytes)
        with session:
            assert (session.strategy, session.settings["draft"]) == ("auto", "model")
            assert session.settings["draft_left_out"] is None
        assert said == []


def test_the_target_alone_where_memory_is_short_for_both(short: Callable[..., Any]) -> None:
    session, said = short(35)
    with session:
        assert (session.strategy, session.settings["draft"]) == ("autoregressive", "none")
        reason = session.settings["draft_left_out"]
        assert reason.startswith("There is no room for the draft model (about 0.05 GB")
        assert said == [f"{reason}: the target writes alone."]
        alone = "".join(session.generate("the", max_new_tokens=8))
        with pytest.raises(UsageError, match="needs a draft"):
            session.strategy = "mirror"
    session, _ = short(None)
    with session:
        assert "".join(session.generate("the", max_new_tokens=8)) == alone


@pytest.mark.parametrize("settings", [{"draft": "model"}, {"draft_execution_provider": "CPU"}])
def test_a_draft_that_was_asked_for_is_not_left_out(
    short: Callable[..., Any], settings: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match=r"no room for the draft model beside the target: about"):
        short(35, **settings)


def test_a_draft_that_is_not_needed_needs_no_room(short: Callable[..., Any]) -> None:
    for settings in ({"draft": "lookup"}, {"draft": "none"}, {"strategy": "autoregressive"}):
        session, said = short(35, **settings)
        session.close()
        assert said == []


def test_a_strategy_chosen_later_looks_again(
    short: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, said = short(100, strategy="autoregressive")
    with session:
        monkeypatch.setattr(memory, "available_bytes", lambda: 5_000_000)
        session.strategy = "mirror"
        assert session.strategy == "autoregressive"
        assert said == [f"{session.settings['draft_left_out']}: the target writes alone."]


def test_many_texts_at_once_need_room_for_another_graph(
    short: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = short(100, draft="none")
    with session:
        monkeypatch.setattr(memory, "available_bytes", lambda: 5_000_000)
        with pytest.raises(UsageError, match="no room to write several texts at once: about"):
            session.generate_many(["the", "a"], max_new_tokens=2)
        monkeypatch.setattr(memory, "available_bytes", lambda: 100_000_000)
        assert len(session.generate_many(["the", "a"], max_new_tokens=2)) == 2


def test_a_target_that_does_not_fit_is_refused_with_numbers(short: Callable[..., Any]) -> None:
    with pytest.raises(
        UsageError,
        match=r"tiny in int8 does not fit: about 0\.03 GB .* smaller context length than 256, or a",
    ):
        short(1, draft="none")


def test_a_bundle_without_a_draft_says_so(tiny_gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    graphs = ["--graphs", "target/fused-int8", "--draft", "none"]
    assert export_main(["gguf", str(tiny_gguf), "--out", str(folder), *graphs]) == 0
    said: list[str] = []
    with open_session(folder, cache_dir=tmp_path, progress=noting(said)) as session:
        assert (session.strategy, session.settings["draft"]) == ("autoregressive", "none")
    assert said == [f"The bundle {folder} has no draft model: the target writes alone."]


def test_memory_that_runs_out_all_the_same_is_a_sentence(
    short: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("runtime.models.open_graph", fail)
    with pytest.raises(UsageError, match="does not fit: memory ran out"):
        short(None, draft="none")
