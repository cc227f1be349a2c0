"""Tests of runtime/plot.py: what is drawn stands where its time is."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from runtime.plot import COLOURS, HIT, LEFT, MISS, PANEL, RIGHT, WIDTH, Panel, drawn, telling_rounds
from runtime.timeline import Round, Run, Timeline
from tests.timelines import THREE_ROUNDS

SVG = "{http://www.w3.org/2000/svg}"
WHOLE = Panel("mirror:model · a model · a machine", "an answer", THREE_ROUNDS, 0, 2)


def parsed(*panels: Panel) -> ElementTree.Element:
    return ElementTree.fromstring(drawn(panels))


def bars(root: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    """Start and end, as shares of the panel's width."""
    found = []
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("class") == kind:
            left, wide = float(rect.attrib["x"]), float(rect.attrib["width"])
            whole = WIDTH - LEFT - RIGHT
            found.append(((left - LEFT) / whole, (left + wide - LEFT) / whole))
    return found


def shares(*times: tuple[float, float]) -> list[object]:
    """The same of times, for a panel from second 11 to 16."""
    return [pytest.approx(((start - 11) / 5, (end - 11) / 5), abs=2e-5) for start, end in times]


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_bars_stand_where_their_times_are() -> None:
    root = parsed(WHOLE)
    assert bars(root, "verify") == shares((12, 12.75), (13.5, 14.5), (15, 15.5))
    assert bars(root, "wait for the draft") == shares((11.25, 12))
    assert bars(root, "propose") == shares((11.25, 11.75))
    assert bars(root, "look ahead") == shares((12, 12.5), (13.75, 14.75))
    assert bars(root, "read") == []  # before the first round
    # The last text is made after the last round.
    assert sorted(bars(root, "own work")) == shares(
        (11, 11.25), (12.75, 13), (13, 13.25), (14.5, 15), (15.5, 16)
    )


def test_a_part_of_an_answer_cuts_what_reaches_over_its_edges() -> None:
    long = replace(THREE_ROUNDS, draft=(Run(11.0, 14.0, "look ahead"), Run(14.75, 16, "read")))
    root = parsed(replace(WHOLE, timeline=long, first=1, last=1))
    assert bars(root, "look ahead") == [pytest.approx((0, 1 / 3), abs=2e-5)]
    assert bars(root, "read") == [pytest.approx((1.25 / 1.5, 1), abs=2e-5)]
    (told,) = (
        rect.findtext(f"{SVG}title")
        for rect in root.iter(f"{SVG}rect")
        if rect.get("class") == "look ahead"
    )
    assert told == "look ahead: -2500.00 to 500.00 ms"  # the whole of it


def test_each_thread_has_a_lane() -> None:
    lanes: dict[str, set[str]] = {}
    for rect in parsed(WHOLE).iter(f"{SVG}rect"):
        lanes.setdefault(rect.attrib["class"], set()).add(rect.attrib["y"])
    target, draft = lanes["verify"], lanes["look ahead"]
    assert lanes["wait for the draft"] == lanes["own work"] == target
    assert lanes["propose"] == draft
    assert len(target) == len(draft) == 1
    assert target != draft


def test_rounds_end_with_their_outcome() -> None:
    root = parsed(WHOLE)
    labels = [
        (element.text, element.get("fill"))
        for element in root.iter(f"{SVG}text")
        if element.get("class") == "outcome"
    ]
    assert labels == [("miss +2", MISS), ("hit +3", HIT), ("+1", "#808080")]
    ends = [
        float(line.attrib["x1"]) for line in root.iter(f"{SVG}line") if line.get("class") == "end"
    ]
    assert ends == [pytest.approx(WHOLE.x(moment), abs=0.01) for moment in (13, 15, 16)]


def test_the_axis_is_in_milliseconds_and_not_crowded() -> None:
    root = parsed(WHOLE)
    ticks = [
        (float(text.attrib["x"]), text.text)
        for text in root.iter(f"{SVG}text")
        if text.get("class") == "tick"
    ]
    assert ticks[0][1] == "0 ms"
    for x, label in ticks[1:]:
        assert label is not None
        assert x == pytest.approx(WHOLE.x(11 + float(label) / 1000), abs=0.01)
    assert 4 < len(ticks) < 14


@pytest.mark.parametrize("seconds", [1e-6, 3e-4, 0.17, 2.0, 900.0])
def test_any_length_of_time_can_be_drawn(seconds: float) -> None:
    timeline = replace(THREE_ROUNDS, rounds=(Round(11.0, 11.0 + seconds, 0, 0, 5),))
    root = parsed(replace(WHOLE, timeline=timeline, last=0))
    assert 1 <= sum(text.get("class") == "tick" for text in root.iter(f"{SVG}text")) <= 14


def test_panels_lie_below_each_other_over_one_legend() -> None:
    root = parsed(WHOLE, replace(WHOLE, title="another <&> \x1b[31m\ud800"))
    found = texts(root)
    assert found.count("target") == found.count("draft") == 2
    assert WHOLE.title in found
    assert "another <&> ␛[31m?" in found
    assert [name for name in COLOURS if name not in found] == []
    single = float(parsed(WHOLE).attrib["height"])
    assert float(root.attrib["height"]) == single + PANEL


def rounds(outcomes: str, *, proposed: int = 2) -> Timeline:
    """A round for each letter: hit, miss, or nothing was looked ahead."""
    hits = {"h": True, "m": False, "-": None}
    each = (
        Round(place, place + 1, proposed, 0, 5, hits[letter])
        for place, letter in enumerate(outcomes)
    )
    return replace(THREE_ROUNDS, rounds=tuple(each))


@pytest.mark.parametrize(
    ("timelines", "window"),
    [
        ([rounds("-")], (0, 0, 0)),
        ([rounds("----")], (0, 0, 2)),
        ([rounds(""), rounds("mm")], (1, 0, 1)),
        ([rounds("mmmhm")], (0, 2, 4)),
        ([rounds("mmh"), rounds("hmm")], (1, 0, 2)),
        ([rounds("-", proposed=0), rounds("-"), rounds("--")], (2, 0, 1)),
    ],
)
def test_the_rounds_that_tell_most(timelines: list[Timeline], window: tuple[int, int, int]) -> None:
    assert telling_rounds(timelines, 3) == window
