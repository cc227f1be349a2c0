"""Tests of runtime/layout.py: every core used once, and no thread without one when pinned."""

import itertools

import pytest

from runtime.errors import UsageError
from runtime.layout import Layout, Sharing, lay_out


@pytest.mark.parametrize(
    ("cores", "threads", "draft_threads", "expected"),
    [
        ([0], None, None, Layout(1, 1, sharing="at once")),
        ([0, 1], None, None, Layout(1, 1, (0,), (1,), "at once")),
        ([0, 1, 2], None, None, Layout(2, 1, (0, 1), (2,), "at once")),
        ([0, 1, 2, 3], None, None, Layout(2, 2, (0, 1), (2, 3), "at once")),
        ([4, 6, 7], None, None, Layout(2, 1, (4, 6), (7,), "at once")),
        ([0, 1, 2, 3], 3, None, Layout(3, 1, (0, 1, 2), (3,), "at once")),
        ([0, 1, 2, 3], 1, None, Layout(1, 3, (0,), (1, 2, 3), "at once")),
        ([0, 1, 2, 3], None, 1, Layout(3, 1, (0, 1, 2), (3,), "at once")),
        ([0, 1, 2, 3], None, 4, Layout(1, 4, sharing="at once")),
        ([0, 1, 2, 3], 1, 1, Layout(1, 1, (0,), (1,), "at once")),
        ([0, 1], 2, None, Layout(2, 1, sharing="at once")),
        ([0, 1], 2, 2, Layout(2, 2, sharing="at once")),
        ([0, 1], 9, 9, Layout(9, 9, sharing="at once")),
    ],
)
def test_two_models_at_once(
    cores: list[int], threads: int | None, draft_threads: int | None, expected: Layout
) -> None:
    found = lay_out(cores, threads=threads, draft_threads=draft_threads, sharing="at once")
    assert found == expected


def test_alone_the_target_has_every_core_and_is_not_pinned() -> None:
    for cores in ([0], [0, 1], [2, 3, 5]):
        found = lay_out(cores, threads=None, draft_threads=None, sharing="alone")
        assert found == Layout(len(cores), 0)
    assert lay_out([0, 1], threads=1, draft_threads=5, sharing="alone") == Layout(1, 0)
    assert lay_out([0, 1], threads=3, draft_threads=None, sharing="alone") == Layout(3, 0)


def test_cores_are_never_shared_or_invented() -> None:
    wishes = (None, 1, 2, 3, 5)
    for count, threads, draft_threads in itertools.product(range(1, 7), wishes, wishes):
        cores = list(range(10, 10 + count))
        found = lay_out(cores, threads=threads, draft_threads=draft_threads, sharing="at once")
        assert found.threads == threads or (threads is None and found.threads >= 1)
        assert found.draft_threads == draft_threads or (
            draft_threads is None and found.draft_threads >= 1
        )
        fits = found.threads + found.draft_threads <= count
        assert len(found.cores) == (found.threads if fits else 0)
        assert len(found.draft_cores) == (found.draft_threads if fits else 0)
        assert [*found.cores, *found.draft_cores] == cores[: found.threads + found.draft_threads][
            : count if fits else 0
        ]


def test_in_turn_both_have_every_core_and_are_not_pinned() -> None:
    for cores in ([0], [0, 1], [2, 3, 5]):
        found = lay_out(cores, threads=None, draft_threads=None, sharing="in turn")
        assert found == Layout(len(cores), len(cores), sharing="in turn")
    found = lay_out([0, 1, 2], threads=2, draft_threads=1, sharing="in turn")
    assert found == Layout(2, 1, sharing="in turn")


@pytest.mark.parametrize("sharing", ["alone", "in turn", "at once"])
@pytest.mark.parametrize("bad", [0, -1])
def test_fewer_than_one_thread_is_refused(bad: int, sharing: Sharing) -> None:
    with pytest.raises(UsageError, match=f"number of threads is {bad}; it must be 1 to 512"):
        lay_out([0, 1], threads=bad, draft_threads=None, sharing=sharing)
    with pytest.raises(UsageError, match=f"number of draft threads is {bad}"):
        lay_out([0, 1], threads=None, draft_threads=bad, sharing=sharing)
