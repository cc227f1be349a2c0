"""Sessions on one device wait for each other where the table says so: runs, bindings, loading."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from runtime.providers import Place, load
from runtime.providers.turns import in_turn, turn_on
from tests.fake_devices import Machine

GPU = Place("DirectML", "GPU")
OTHERS = [Place("DirectML", "GPU", 1), Place("DirectML", "NPU"), Place("CUDA", "GPU")]


class Work:
    """Counts how much of it is under way at once."""

    def __init__(self) -> None:
        self.now, self.most, self.calls = 0, 0, 0
        self.both = threading.Barrier(2, timeout=0.2)

    def __call__(self, *_arguments: Any) -> None:
        self.now += 1
        self.calls += 1
        self.most = max(self.most, self.now)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait()  # broken after its time, unless another is here too
        self.now -= 1


def fake(work: Callable[..., Any]) -> Any:
    binding = SimpleNamespace(bind_input=work, bind_ortvalue_output=work, synchronize_inputs=work)
    return SimpleNamespace(
        run=work, run_with_iobinding=work, io_binding=lambda: binding, get_inputs=work
    )


def together(*works: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", ["run", "run_with_iobinding"])
@pytest.mark.parametrize("other", [GPU, *OTHERS])
def test_runs_take_turns_on_one_device(other: Place, name: str) -> None:
    work = Work()
    sessions = [in_turn(fake(work), place) for place in (GPU, other)]
    together(*(getattr(session, name) for session in sessions))
    assert (work.most, work.calls) == (1 if other == GPU else 2, 2)


@pytest.mark.parametrize("name", ["bind_input", "bind_ortvalue_output"])
def test_what_is_bound_waits_for_a_run(name: str) -> None:
    work = Work()
    one, other = (in_turn(fake(work), GPU) for _ in range(2))
    together(one.run, getattr(other.io_binding(), name))
    assert (work.most, work.calls) == (1, 2)


def test_what_is_no_work_does_not_wait() -> None:
    work = Work()
    one, other = (in_turn(fake(work), GPU) for _ in range(2))
    together(one.run, other.get_inputs)
    assert work.most == 2


def test_a_session_is_loaded_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, libraries={}, built_in={"DirectML": []})
    work = Work()

    class Session:
        def __init__(self, *_arguments: Any, **_named: Any) -> None:
            work()

        def disable_fallback(self) -> None:
            pass

        def get_provider_graph_assignment_info(self) -> list[Any]:
            return []

        run = staticmethod(work)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    session = load(Path("graph.onnx"), threads=1, name=GPU)
    together(session.run, lambda: load(Path("graph.onnx"), threads=1, name=GPU))
    assert (work.most, work.calls) == (1, 3)


def test_work_that_fails_lets_the_next_in() -> None:
    def failing() -> None:
        raise RuntimeError

    session = in_turn(fake(failing), GPU)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            session.run()
    with turn_on(GPU):
        pass


def test_where_the_table_says_nothing_a_session_is_left_as_it_is() -> None:
    session = fake(Work())
    assert in_turn(session, Place("CPU")) is session
    assert in_turn(session, GPU) is not session
