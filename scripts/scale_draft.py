"""How a draft's agreement grows with its depth and with the text it learns from.

    python scripts/scale_draft.py --corpus models/smollm2-135m-corpus --work work/scale \
        --depths 4,8,12,15,20 --tokens 60000,120000,240000,480000

Each point is a training of its own, with its own schedule, by `python -m export distill`; one that
is there is not made again. The shallowest finds out in which order the target's layers are left out
best, and the others follow it. Depths are compared at the first number of tokens but one, tokens at
--at-depth. Writes WORK/scale.json, and a drawing to --draw.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN = 360, 260, 48
HELD_OUT = "held-out.npz"
Point = tuple[float, float, float]  # depth or tokens, agreement, share among the first five


def main() -> None:
    """Train what is missing, then write and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--corpus", type=Path, required=True, metavar="DIR")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--depths", type=_numbers, default=[4, 8, 12, 15, 20])
    parser.add_argument("--tokens", type=_numbers, default=[60_000, 120_000, 240_000, 480_000])
    parser.add_argument("--at-depth", type=int, default=15)
    parser.add_argument("--draw", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    if len(options.tokens) < 2:
        parser.error("--tokens needs two numbers or more")
    if options.at_depth < min(options.depths):
        parser.error("--at-depth is less than all of --depths, the least of which finds the layers")
    options.work.mkdir(parents=True, exist_ok=True)
    middle, shallowest = sorted(options.tokens)[1], min(options.depths)
    _train(options, shallowest, middle, ["--depth", str(shallowest)])
    log = _folder(options, shallowest, middle) / "log.txt"
    left_out = order_left_out(log.read_text(encoding="utf-8"))
    count = shallowest + len(left_out)
    if max(*options.depths, options.at_depth) > count:
        parser.error(f"the target has {count} layers")

    def train(depth: int, tokens: int) -> dict[str, float]:
        layers = sorted(set(range(count)) - set(left_out[: count - depth]))
        return _train(options, depth, tokens, ["--layers", ",".join(map(str, layers))])

    found: dict[str, Any] = {
        "depths_at_tokens": middle,
        "tokens_at_depth": options.at_depth,
        "depths": [train(depth, middle) for depth in options.depths],
        "tokens": [train(options.at_depth, tokens) for tokens in options.tokens],
    }
    (options.work / "scale.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    if options.draw:
        options.draw.write_text(draw(found), encoding="utf-8")


def order_left_out(log: str) -> list[int]:
    """The target's layers in the order in which a distillation left them out, by its log."""
    found = re.findall(r" without layer (\d+): ", log)
    return [int(layer) for layer in dict.fromkeys(found)]  # told again after an interruption


def _folder(options: argparse.Namespace, depth: int, tokens: int) -> Path:
    folder: Path = options.work / f"depth-{depth}-tokens-{tokens}"
    return folder


def _train(
    options: argparse.Namespace, depth: int, tokens: int, layers: Sequence[str]
) -> dict[str, float]:
    """One training; its depth, tokens, and agreement over all kinds of held-out prompts."""
    folder = _folder(options, depth, tokens)
    result = folder / "evaluation.json"
    if not result.exists():
        folder.mkdir(exist_ok=True)
        # The same for every run.
        states, held_out = options.work / "states", options.work / HELD_OUT
        states.mkdir(exist_ok=True)
        if not (folder / states.name).exists():
            (folder / states.name).symlink_to(states.resolve())
        if held_out.exists():
            shutil.copy(held_out, folder)
        command = [sys.executable, "-m", "export", "distill", "--target", options.target]
        command += ["--out", str(folder), "--corpus", str(options.corpus), *layers]
        command += ["--tokens", str(tokens), "--tokens-per-pass", "1"]
        subprocess.run(command, check=True)
        shutil.copy(folder / HELD_OUT, options.work)
    shares = json.loads(result.read_text(encoding="utf-8"))["all"]
    first, among_five = shares["first"][0], shares["among_five"][0]
    print(f"depth {depth}, {tokens} tokens: agreement {first:.3f}, among five {among_five:.3f}")
    return {"depth": depth, "tokens": tokens, "first": first, "among_five": among_five}


def draw(found: dict[str, Any]) -> str:
    """Two panels as SVG: agreement by depth, and by tokens on a logarithmic axis."""
    panels = [
        _panel(
            [(item["depth"], item["first"], item["among_five"]) for item in found["depths"]],
            f"layers ({found['depths_at_tokens']:,} tokens)",
            0,
        ),
        _panel(
            [(item["tokens"], item["first"], item["among_five"]) for item in found["tokens"]],
            f"tokens ({found['tokens_at_depth']} layers)",
            WIDTH,
            doubling=True,
        ),
    ]
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _panel(points: Sequence[Point], label: str, left: int, *, doubling: bool = False) -> str:
    points = sorted(points)
    wide, high = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    first, last = points[0][0], points[-1][0]

    def across(value: float) -> float:
        place = len(points) - 1
        if not doubling:
            return left + MARGIN + wide * (value - first) / max(last - first, 1)
        return left + MARGIN + wide * [point[0] for point in points].index(value) / max(place, 1)

    def up(share: float) -> float:
        return HEIGHT - MARGIN - high * share

    parts = [
        f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{label}</text>',
        *(
            f'<line x1="{left + MARGIN}" x2="{left + MARGIN + wide}" y1="{up(share):.1f}" '
            f'y2="{up(share):.1f}" stroke="#ddd"/><text x="{left + MARGIN - 6}" '
            f'y="{up(share) + 4:.1f}" text-anchor="end">{share:.1f}</text>'
            for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
        ),
        *(
            f'<text x="{across(point[0]):.1f}" y="{HEIGHT - MARGIN + 16}" '
            f'text-anchor="middle">{point[0]:,.0f}</text>'
            for point in points
        ),
    ]
    for place, colour, name in ((1, "#1565c0", "first choice"), (2, "#ef6c00", "among five")):
        line = " ".join(f"{across(point[0]):.1f},{up(point[place]):.1f}" for point in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across(point[0]):.1f}" cy="{up(point[place]):.1f}" r="3" '
            f'fill="{colour}"><title>{name} {point[place]:.3f}</title></circle>'
            for point in points
        ]
    parts.append(
        f'<text x="{left + MARGIN + 6}" y="{MARGIN - 14}">agreement: <tspan fill="#1565c0">first '
        'choice</tspan>, <tspan fill="#ef6c00">among five</tspan></text>'
    )
    return "\n".join(parts)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
