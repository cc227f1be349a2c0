"""Calibrate a pair of models: open them as a session would, time them, keep and tell the costs."""

import dataclasses
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime import providers
from runtime.calibration import LIMIT_S, measure, write_costs
from runtime.costs import Costs, Curve
from runtime.draft_model import draft_role, open_draft, tokens_per_pass
from runtime.early_exit import EarlyExit
from runtime.exit_head import ExitHead
from runtime.flavours import choose_graph, open_exit_head, open_graph
from runtime.layout import Layout, Sharing, lay_out
from runtime.manifest import Graph, Manifest
from runtime.places import places_of, usual_precision
from runtime.probe import machine_key
from runtime.providers import Place, as_place
from runtime.split_session import SplitSession

CONTEXT = 512  # tokens, of the sessions that are timed
PARTS_ROWS, PARTS_CALLS = 8, 12


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the bundle of its draft, None for none; settings as in `Settings`."""

    target: Manifest
    draft: Manifest | None
    precision: str | None = None
    provider: str | Place = "CPU"
    draft_provider: str | Place = "CPU"
    threads: int | None = None
    draft_threads: int | None = None
    draft_tokens_per_pass: int | None = None

    def keeping(self, folder: Path, say: Callable[[str], None]) -> "Pair":
        """The same, with a folder for what is compiled for both places."""
        return dataclasses.replace(
            self,
            provider=as_place(self.provider).keeping(folder, say),
            draft_provider=as_place(self.draft_provider).keeping(folder, say),
        )

    @property
    def graph(self) -> Graph:
        """The target's."""
        return choose_graph(self.target, "target", self.provider, self.precision)

    @property
    def sharings(self) -> tuple[Sharing, ...]:
        """The ways in which the two can share the machine."""
        if self.draft is None:
            return ("alone",)
        same = as_place(self.draft_provider).same_device(as_place(self.provider))
        return ("at once", "in turn") if same else ("at once",)

    def layout(self, sharing: Sharing) -> Layout:
        """Threads and cores of both."""
        return lay_out(
            providers.usable_cores(),
            threads=self.threads,
            draft_threads=self.draft_threads,
            sharing=sharing,
        )

    def costs_path(self, folder: Path, layout: Layout) -> Path:
        """Where the costs of these models, laid out so on this machine, are kept."""
        target = machine_key(
            self.target.folder,
            self.target.folder / self.graph.file,
            as_place(self.provider),
            layout.threads,
        )
        parts = [target, *map(str, dataclasses.astuple(layout))]
        if self.draft is not None:
            graph = choose_graph(self.draft, draft_role(self.draft), self.draft_provider)
            parts += [
                machine_key(
                    self.draft.folder,
                    self.draft.folder / graph.file,
                    as_place(self.draft_provider),
                    layout.draft_threads,
                ),
                str(tokens_per_pass(self.draft, self.draft_tokens_per_pass)),
            ]
        return (
            folder / f"costs-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}.json"
        )


def pair_of(
    model: Path,
    draft_model: Path | None,
    settings: Mapping[str, Any],
    *,
    report: Callable[[str], None] | None = None,
) -> Pair:
    """The pair in one or two bundles; `settings` by the names of `runtime.open_session`.

    report: is told which operators run on the CPU instead of the device asked for.
    Raises UsageError for settings that cannot be meant, BundleError for what is no bundle,
    ProviderError for a provider that cannot be used.
    """
    place, draft_place = places_of(settings, report)
    target = Manifest.load(model)
    draft = target if draft_model is None else Manifest.load(draft_model)
    return Pair(
        target,
        draft if draft is not target or target.draft is not None else None,
        usual_precision(settings["precision"], place),
        place,
        draft_place,
        settings["threads"],
        settings["draft_threads"],
        settings["draft_tokens_per_pass"],
    )


def calibrate(
    pair: Pair,
    sharing: Sharing,
    *,
    folder: Path,
    say: Callable[[str], None],
    limit_s: float = LIMIT_S,
) -> Costs:
    """Time the pair for about `limit_s` seconds, and keep in `folder` what was found.

    Raises BundleError and ProviderError for models that cannot be loaded.
    """
    layout = pair.layout(sharing)
    target, context = pair.target, min(CONTEXT, pair.graph.context or CONTEXT)
    settings: dict[str, Any] = {
        "provider": pair.provider,
        "threads": layout.threads,
        "cores": layout.cores,
        "context": min(context, target.target.geometry.context),
        "sharing": sharing,
    }
    session = open_graph(target.folder, pair.graph, target.target.geometry, **settings)
    draft, per_pass = None, 1
    if pair.draft is not None:
        draft, _ = open_draft(
            pair.draft,
            provider=pair.draft_provider,
            threads=layout.draft_threads,
            cores=layout.draft_cores,
            context=context,
            sharing=sharing,
        )
        per_pass = tokens_per_pass(pair.draft, pair.draft_tokens_per_pass)
    costs = measure(session, draft, tokens_per_pass=per_pass, limit_s=limit_s, say=say)
    del session, draft
    layer = target.target.early_exit_layer
    if pair.graph.early_exit is not None and layer is not None:
        split = open_graph(
            target.folder, pair.graph, target.target.geometry, exit_layer=layer, **settings
        )
        if isinstance(split, SplitSession):
            head = open_exit_head(
                target.folder,
                pair.graph,
                threads=layout.threads,
                cores=layout.cores,
                sharing=sharing,
            )
            share, exit_s = _of_the_exit(split, head)
            costs = dataclasses.replace(costs, prefix_share=share, exit_s=exit_s)
    write_costs(pair.costs_path(folder, layout), costs)
    return costs


def described(costs: Costs, layout: Layout) -> str:
    """A table and a sentence for a person."""
    parts = [f"The target alone, {_threads(layout.threads)}:", *_table("target", costs.target)]
    if layout.draft_threads:
        parts[0] = (
            f"Target and draft {layout.sharing}, {_threads(layout.threads)} and "
            f"{_threads(layout.draft_threads)}, {costs.tokens_per_pass} tokens a pass:"
        )
        parts += _table("draft", costs.draft)
    if costs.exit_s:
        parts.append(
            f"Its first layers take {costs.prefix_share:.2f} of a call, and reading the early exit "
            f"behind them {1000 * costs.exit_s:.1f} ms more."
        )
    if layout.draft_threads:
        parts.append(
            f"Beside each other the target takes {costs.target_slowdown:.2f} times as long, the "
            f"draft {costs.draft_slowdown:.2f} times."
        )
    return "\n".join(parts)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _table(name: str, curve: Curve) -> list[str]:
    cells = [[str(rows) for rows in curve.rows], [f"{1000 * each:.1f}" for each in curve.seconds]]
    heads = ("rows", f"{name}, ms")
    return [
        f"{head:<12}{''.join(cell.rjust(8) for cell in line)}"
        for head, line in zip(heads, cells, strict=True)
    ]


def _of_the_exit(session: SplitSession, head: ExitHead) -> tuple[float, float]:
    """What the graph before the exit takes of a whole call, and the seconds of reading the exit."""
    seconds: dict[str, list[float]] = {}

    @contextmanager
    def timed(part: str, _rows: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds.setdefault(part, []).append(time.perf_counter() - began)

    session.pace = head.pace = timed
    EarlyExit(session, head).tell(lambda _tokens: None)
    text = np.arange(PARTS_ROWS, dtype=np.int64)
    for _ in range(PARTS_CALLS):
        session.extend(text, num_logits=PARTS_ROWS)
    medians = {part: statistics.median(found[1:]) for part, found in seconds.items()}
    return medians["prefix"] / (medians["prefix"] + medians["suffix"]), medians["exit"]
