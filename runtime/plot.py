"""Draw some rounds of an answer: two lanes over time, the target's and the draft's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from runtime.screen import CONTROLS
from runtime.timeline import Round, Run, Timeline
from runtime.trace import own_work

ROUNDS = 6
WIDTH, LEFT, RIGHT = 960.0, 70.0, 16.0
TITLE, NOTE, OUTCOME, LANE, GAP, AXIS = 22.0, 18.0, 20.0, 28.0, 6.0, 34.0
PANEL = TITLE + NOTE + OUTCOME + 2 * LANE + GAP + AXIS
LEGEND = 26.0
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
MOST_TICKS = 12
# Each can be told from white and from black, and from the others without red and green.
INK, HIT, MISS = "#808080", "#2b9348", "#d1495b"
COLOURS = {
    "verify": "#3d7ebf",
    "own work": "#a8a8a8",
    "wait for the draft": "none",
    "read": "#8d7b68",
    "propose": "#d9822b",
    "look ahead": "#8a5fbf",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """Rounds `first` to `last` (places, both included) of an answer; `note` says which it is."""

    title: str
    note: str
    timeline: Timeline
    first: int
    last: int

    @property
    def rounds(self) -> Sequence[Round]:
        """The rounds that are drawn."""
        return self.timeline.rounds[self.first : self.last + 1]

    def x(self, moment: float) -> float:
        """Where a moment is drawn, in pixels."""
        start, end = self.rounds[0].start, self.rounds[-1].end
        return LEFT + (WIDTH - LEFT - RIGHT) * (moment - start) / (end - start)

    def ms(self, moment: float) -> float:
        """Milliseconds from the panel's left edge."""
        return 1000 * (moment - self.rounds[0].start)


def telling_rounds(timelines: Sequence[Timeline], count: int = ROUNDS) -> tuple[int, int, int]:
    """The place of an answer, and the first and last of `count` rounds of it, that tell most.

    Those with a hit and a miss before their last round, so that what followed is seen; then those
    with most proposals; of equals the earliest. An answer of fewer rounds is taken whole; at least
    one must have a round.
    """
    windows = [
        (place, first, min(first + count, len(timeline.rounds)) - 1)
        for place, timeline in enumerate(timelines)
        for first in range(max(1, len(timeline.rounds) - count + 1))
        if timeline.rounds
    ]

    def worth(window: tuple[int, int, int]) -> tuple[bool, int]:
        place, first, last = window
        rounds = timelines[place].rounds[first : last + 1]
        hits = {each.hit for each in rounds[:-1]}
        return {True, False} <= hits, sum(each.proposed > 0 for each in rounds)

    return max(windows, key=worth)


def drawn(panels: Sequence[Panel]) -> str:
    """An SVG of the panels below each other; times are proportional within a panel."""
    height = PANEL * len(panels) + LEGEND
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH:g} {height:g}" font-family="sans-serif" font-size="12" fill="{INK}">'
    ]
    for place, panel in enumerate(panels):
        lines += _panel(panel, PANEL * place)
    lines += _legend(PANEL * len(panels))
    return "\n".join([*lines, "</svg>\n"])


def _panel(panel: Panel, top: float) -> Iterator[str]:
    target = top + TITLE + NOTE + OUTCOME
    draft = target + LANE + GAP
    bottom = draft + LANE
    yield _text(panel.title, LEFT, top + 15, 'font-size="14" font-weight="bold"')
    yield _text(panel.note, LEFT, top + TITLE + 9, 'font-size="11"')
    for place, each in enumerate(panel.rounds):
        yield from _round(panel, each, target, bottom, shaded=place % 2 == 0)
    yield _text("target", LEFT - 8, target + 18, 'text-anchor="end"')
    yield _text("draft", LEFT - 8, draft + 18, 'text-anchor="end"')
    timeline = panel.timeline
    work = [own for each in panel.rounds for own in own_work(timeline, each)]
    work += timeline.deliveries
    for kind, y, runs in (
        ("wait for the draft", target, timeline.waits),
        ("own work", target, work),
        ("verify", target, timeline.target),
        ("", draft, timeline.draft),
    ):
        for run in runs:
            yield from _bar(panel, run, kind or run.name, y)
    yield from _axis(panel, bottom)


def _round(panel: Panel, each: Round, top: float, bottom: float, *, shaded: bool) -> Iterator[str]:
    """A band over both lanes, and above its end how the round ended."""
    left, right = panel.x(each.start), panel.x(each.end)
    if shaded:
        yield _rect("band", left, top - 4, right - left, bottom - top + 8, 'fill-opacity="0.1"')
    word, colour = {True: ("hit", HIT), False: ("miss", MISS), None: ("", INK)}[each.hit]
    settled = f"+{each.accepted + 1}"
    label = f"{word} {settled}".strip()
    if _width(label) > right - left:
        label = settled
    yield (
        f'<line class="end" x1="{right:.2f}" x2="{right:.2f}" y1="{top - 14:g}" '
        f'y2="{bottom + 4:g}" stroke="{colour}" stroke-width="1.5"/>'
    )
    style = f'class="outcome" text-anchor="end" font-weight="bold" fill="{colour}"'
    yield _text(label, right - 4, top - 7, style)


def _bar(panel: Panel, run: Run, kind: str, y: float) -> Iterator[str]:
    """A run, as far as it lies in the panel's time."""
    start = max(run.start, panel.rounds[0].start)
    end = min(run.end, panel.rounds[-1].end)
    if start >= end:
        return
    left, wide = panel.x(start), panel.x(end) - panel.x(start)
    colour = COLOURS.get(kind, INK)
    style = f'fill="{colour}" rx="1"'
    if colour == "none":
        style += f' stroke="{INK}" stroke-dasharray="3 3"'
    rows = f", {run.rows} rows" if run.rows else ""
    times = f"{panel.ms(run.start):.2f} to {panel.ms(run.end):.2f} ms"
    yield _rect(kind, left, y, wide, LANE, style, f"{run.name}{rows}: {times}")
    label = f"{kind} {run.rows}" if run.rows else kind
    if kind != "own work" and _width(label) < wide:
        ink = INK if colour == "none" else "#ffffff"
        style = f'text-anchor="middle" font-size="11" fill="{ink}" pointer-events="none"'
        yield _text(label, left + wide / 2, y + 18, style)


def _axis(panel: Panel, y: float) -> Iterator[str]:
    """Ticks in milliseconds, no more than fit."""
    end = panel.ms(panel.rounds[-1].end)
    step = next((step for step in TICKS if end / step <= MOST_TICKS), end)
    for number in range(int(end / step) + 1):
        x = panel.x(panel.rounds[0].start + number * step / 1000)
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{y + 4:g}" y2="{y + 9:g}" stroke="{INK}"/>'
        unit = " ms" if number == 0 else ""
        style = 'class="tick" text-anchor="middle" font-size="10"'
        yield _text(f"{number * step:g}{unit}", x, y + 20, style)


def _legend(top: float) -> Iterator[str]:
    x = LEFT
    for name, colour in COLOURS.items():
        style = f'fill="{colour}" stroke="{INK if colour == "none" else colour}"'
        yield _rect("key", x, top, 11, 11, style)
        yield _text(name, x + 16, top + 10)
        x += 26 + _width(name)
    yield _text("hit", x, top + 10, f'font-weight="bold" fill="{HIT}"')
    yield _text("miss", x + 26, top + 10, f'font-weight="bold" fill="{MISS}"')
    yield _text("+n: tokens that the round settled", x + 62, top + 10)


def _rect(
    kind: str, x: float, y: float, wide: float, high: float, style: str, says: str = ""
) -> str:
    title = f"<title>{_escaped(says)}</title>" if says else ""
    box = f'x="{x:.2f}" y="{y:g}" width="{wide:.2f}" height="{high:g}"'
    return f'<rect class="{_escaped(kind)}" {box} {style}>{title}</rect>'


def _text(text: str, x: float, y: float, style: str = "") -> str:
    return f'<text x="{x:.2f}" y="{y:g}" {style}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """`text` as XML in UTF-8 can hold it."""
    return escape(text.translate(CONTROLS).encode("utf-8", "replace").decode("utf-8"))


def _width(text: str) -> float:
    """Pixels that a label takes, roughly, with some room beside it."""
    return 6.2 * len(text) + 6
