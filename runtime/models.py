"""What a session has loaded: target, draft and lanes, each when it is first needed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runtime import memory, providers, vocabulary
from runtime.batch import LaneSession
from runtime.clock import REAL_TIMING
from runtime.draft_model import draft_role, load_drafter, load_head_tokens, tokens_per_pass
from runtime.drafter import Drafter, LookupDrafter, LookupFirst
from runtime.early_exit import EarlyExit
from runtime.emulation import EmulatedDevices, Pacer, shares_of_parts
from runtime.errors import BundleError, UsageError
from runtime.flavours import choose_graph, open_exit_head, open_graph
from runtime.fused import FusedSession
from runtime.layout import Layout, Sharing, lay_out
from runtime.manifest import Graph, Manifest, Precision
from runtime.probe import exactness
from runtime.round_settings import MOST_DRAFT_TOKENS
from runtime.session import GraphSession, unpaced
from runtime.settings import Settings
from runtime.split_session import SplitSession
from runtime.text import Text
from runtime.trial import presumed, settle
from runtime.worker import DraftWorker

USUAL_DRAFT_TOKENS = 4
USUAL_HYPOTHESES = 8
# The least, in logits: measured were twice 7e-5 and 0.05 at most, see docs/exactness.md.
TREE_BOUNDS: Mapping[Precision, float] = {"fp32": 1e-3, "int8": 0.15, "fp16": 0.15, "int4": 0.15}


class Models:
    """The models of one bundle, or of two where the draft comes from another.

    `target` is laid out for the strategy that `prepare` was last told; its cache stays the same
    through all of them. `draft` is the setting's, or "none" where the model was left out, for the
    reason `draft_left_out`. `exactness` is what the probe says of the target on this machine.
    """

    def __init__(
        self,
        manifest: Manifest,
        draft_manifest: Manifest | None,
        settings: Settings,
        *,
        probes: Path,
        say: Callable[[str], None],
        devices: EmulatedDevices | None = None,
    ) -> None:
        """Load the target, and the draft where the strategy needs one.

        A draft model that was not asked for is left out, which `say` is told, where the bundle has
        none or memory is short. devices: what both models' calls are paced by.
        Raises UsageError when what must be loaded cannot fit in memory.
        """
        self.manifest = manifest
        self.draft_manifest = draft_manifest or manifest
        self.settings = settings
        self.draft = settings.draft
        self._graph = choose_graph(manifest, "target", settings.place, settings.precision)
        self.context = _context(manifest, self._graph, settings.context_length)
        self.draft_left_out: str | None = None
        self.probes = probes
        self.say = say
        self.devices = devices
        strategy = self._settled(settings.strategy, self._check_target())
        self.text = Text.load(manifest.folder)
        if self.text.vocabulary > manifest.target.geometry.vocabulary:
            raise BundleError(
                f"The tokenizer of {manifest.folder} has {self.text.vocabulary} tokens and its "
                f"target {manifest.target.geometry.vocabulary}; build the bundle again."
            )
        if draft_manifest is not None:
            vocabulary.check_same(self.text, Text.load(draft_manifest.folder))
        self.worker: DraftWorker | None = None
        self._drafting: tuple[Layout, bool] | None = None  # what the worker's draft is for
        self.lookup_first = False  # the draft model is asked only where there is nothing to copy
        self._lanes: LaneSession | None = None
        self.layout = self._lay_out(strategy)
        self.early_exit: EarlyExit | None = None
        self._draft_tried = False
        kept: dict[str, Any] = {"threads": self.layout.threads, "folder": probes, "say": say}
        place, tried = settle(manifest, "target", self._graph, settings.place, **kept)
        self.settings = replace(settings, place=place)
        self.target = self._load_target(self.layout)
        self.exactness = presumed(tried, self._graph, place) or exactness(
            self.target,
            bundle=manifest.folder,
            graph=manifest.folder / self._graph.file,
            place=place,
            **kept,
        )
        trees = settings.num_siblings or settings.num_copied_tokens
        if trees and self.exactness.kind != "bitwise":
            raise UsageError(
                "Trees need a target whose logits do not depend on how many rows are computed "
                "together, and here they do: leave num_siblings and num_copied_tokens out."
            )
        self.prepare(strategy)

    @property
    def precision(self) -> str:
        """Of the target's graph."""
        return self._graph.precision

    @property
    def draft_tokens_per_pass(self) -> int | None:
        """How many tokens the draft model gives in a pass; None without one."""
        if self.draft != "model":
            return None
        return tokens_per_pass(self.draft_manifest, self.settings.draft_tokens_per_pass)

    @property
    def num_draft_tokens(self) -> int:
        """How long a guess is."""
        usual = USUAL_DRAFT_TOKENS
        if not self.lookup_first:
            usual = (self.draft_tokens_per_pass or 1) - 1 or usual
        return self.settings.num_draft_tokens or min(usual, MOST_DRAFT_TOKENS)

    @property
    def num_hypotheses(self) -> int:
        """How many outcomes of a round are followed at most."""
        asked = self.settings.num_hypotheses
        return USUAL_HYPOTHESES if asked is None else asked

    @property
    def one_pass(self) -> bool:
        """Whether a guess is as long as a pass of the draft gives, as nobody asked for more."""
        several = (self.draft_tokens_per_pass or 1) > 1
        return self.lookup_first and several and not self.settings.num_draft_tokens

    @property
    def tree_bound(self) -> float:
        """How much a row off a tree's trunk may lead by and still not be sure: see exactness.md."""
        return tree_bound(self._graph)

    def prepare(self, strategy: str) -> None:
        """Load what a strategy needs and does not find loaded."""
        if self.worker is None:
            cache = memory.cache_bytes(self._graph, self.manifest.target.geometry, self.context)
            strategy = self._settled(strategy, cache)
        layout = self._lay_out(strategy)
        if layout != self.layout:
            self.target = self._load_target(layout, cache=self.target.cache)
            self.layout = layout
        if self.devices is not None:
            self.target.pace = self._pacer(self.devices)
        self.lookup_first = strategy == "speculative" and layout.sharing == "in turn"
        if strategy == "autoregressive":
            return
        if self._drafting != (layout, self.lookup_first):  # its threads are other ones
            self.drop_worker()
        if self.worker is None:
            self._try_draft()
            self._drafting = (layout, self.lookup_first)
            self.worker = DraftWorker(
                self._drafter(),
                context=self.context,
                vocabulary=self.target.vocabulary,
                time_limit_s=self.settings.draft_time_limit_s,
                timing=self.devices.timing if self.devices else REAL_TIMING,
            )

    def drop_worker(self) -> None:
        """End the draft's thread; the next `prepare` starts another."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def lanes_for(self, count: int) -> tuple[FusedSession, LaneSession]:
        """The target, and its narrowest graph for `count` sequences, or the widest there is.

        Raises UsageError for a target whose graph decodes only one, and where memory is short.
        """
        graph = self._graph
        widths = sorted(int(lanes) for lanes in graph.lanes)
        if not isinstance(self.target, FusedSession) or self.settings.place.provider != "CPU":
            raise UsageError(
                f"The target runs on {self.settings.place} in a {graph.flavour} graph, and writes "
                "one text at a time: generate_many needs a fused graph, on CPU."
            )
        if not widths:
            raise BundleError(
                f"The bundle {self.manifest.folder} has no graph that decodes many sequences "
                "together; build it again."
            )
        lanes = next((width for width in widths if width >= count), widths[-1])
        if self._lanes is None or self._lanes.lanes != lanes:
            self._lanes = None
            needed = self._target_bytes(context=lanes)
            if short := memory.shortage(needed, memory.available_bytes()):
                raise UsageError(
                    f"There is no room to write several texts at once: {short}. Write one after "
                    "another."
                )
            self._lanes = LaneSession(
                self.manifest.folder / graph.lanes[str(lanes)],
                self.manifest.target.geometry,
                lanes=lanes,
                threads=self._lay_out("autoregressive").threads,
            )
        return self.target, self._lanes

    def _try_draft(self) -> None:
        """Try the draft model on its device, once for all workers."""
        if self.draft == "model" and not self._draft_tried:
            own, place = self.draft_manifest, self.settings.draft_place
            role = draft_role(own)
            graph = choose_graph(own, role, place)
            threads = self.layout.draft_threads
            kept: dict[str, Any] = {"threads": threads, "folder": self.probes, "say": self.say}
            place, _ = settle(own, role, graph, place, **kept)
            self.settings = replace(self.settings, draft_place=place)
            self._draft_tried = True

    def _check_target(self) -> int:
        """How many bytes the target and its tokenizer take; UsageError when there are too few."""
        needed = memory.text_bytes(self.manifest)
        needed += self._target_bytes(
            context=self.context, leaves_early=self._exit_layer() is not None
        )
        if short := memory.shortage(needed, memory.available_bytes()):
            raise self._too_large(short)
        return needed

    def _target_bytes(self, *, context: int, leaves_early: bool = False) -> int:
        return memory.session_bytes(
            self.manifest,
            self._graph,
            self.manifest.target,
            context=context,
            provider=self.settings.place,
            leaves_early=leaves_early,
        )

    def _too_large(self, reason: str) -> UsageError:
        precision = self._graph.precision
        smaller = "" if precision in ("int8", "int4") else " the precision int8,"
        return UsageError(
            f"{self.manifest.name} in {precision} does not fit: {reason}. Take a "
            f"smaller context length than {self.context},{smaller} or a smaller model."
        )

    def _settled(self, strategy: str, reserved: int) -> str:
        """The strategy, with the draft model if it needs one and that fits beside `reserved` bytes.

        Raises UsageError when it does not and must not be left out.
        """
        if self.draft != "model" or strategy == "autoregressive":
            return strategy if self.draft != "none" else "autoregressive"
        own = self.draft_manifest
        if own is self.manifest and own.draft is None:
            reason = f"The bundle {own.folder} has no draft model"
            if not self.settings.needs_draft:
                return self._without_draft(reason)
            raise UsageError(f"{reason}: name one, or take the draft 'lookup' or 'none'.")
        tokens_per_pass(own, self.settings.draft_tokens_per_pass)
        role = draft_role(own)
        needed = reserved + memory.session_bytes(
            own,
            choose_graph(own, role, self.settings.draft_place),
            own.role(role),
            context=self.context,
            provider=self.settings.draft_place,
        )
        short = memory.shortage(needed, memory.available_bytes())
        if short is None:
            return strategy
        if not self.settings.needs_draft:
            return self._without_draft(f"There is no room for the draft model ({short})")
        raise UsageError(
            f"There is no room for the draft model beside the target: {short}. Take a smaller "
            f"context length than {self.context}, or the draft 'lookup' or 'none'."
        )

    def _without_draft(self, reason: str) -> str:
        self.draft, self.draft_left_out = "none", reason
        self.say(f"{reason}: the target writes alone.")
        return "autoregressive"

    def _lay_out(self, strategy: str) -> Layout:
        return lay_out(
            providers.usable_cores(),
            threads=self.settings.threads,
            draft_threads=self.settings.draft_threads,
            sharing=self._sharing(strategy),
        )

    def _sharing(self, strategy: str) -> Sharing:
        """How draft and target share the cores; a draft on another provider may need none."""
        if strategy == "autoregressive" or self.draft != "model":
            return "alone"
        same = self.settings.draft_place.same_device(self.settings.place) and self.devices is None
        return "in turn" if strategy in ("speculative", "auto") and same else "at once"

    def _load_target(self, layout: Layout, **settings: Any) -> GraphSession[Any]:
        folder, geometry = self.manifest.folder, self.manifest.target.geometry
        cores: dict[str, Any] = {
            "threads": layout.threads,
            "cores": layout.cores,
            "sharing": layout.sharing,
        }
        try:
            target = open_graph(
                folder,
                self._graph,
                geometry,
                provider=self.settings.place,
                context=self.context,
                exit_layer=self._exit_layer(),
                **cores,
                **settings,
            )
            if isinstance(target, SplitSession):
                head = open_exit_head(folder, self._graph, **cores)
                if self.devices is not None:
                    head.pace = self._pacer(self.devices)
                self.early_exit = EarlyExit(target, head)
        except MemoryError as error:
            raise self._too_large("memory ran out") from error
        return target

    def _pacer(self, devices: EmulatedDevices) -> Pacer:
        """What paces the target's calls, in two parts and an exit where it is left early."""
        own, layer = self.manifest, self._exit_layer()
        if layer is None:
            return Pacer(devices, "target")
        head = own.draft.head_tokens if own.draft else None
        width = own.target.geometry.vocabulary
        if head is not None:
            width = len(load_head_tokens(own.folder / head, width))
        shares = shares_of_parts(own.target.geometry, layer, head=width)
        return Pacer(devices, "target", shares=shares)

    def _exit_layer(self) -> int | None:
        """After how many layers the target is left early; None where nobody asked for that.

        Raises UsageError where it was asked for and the bundle has no such graph.
        """
        if "exit" not in self.settings.hypothesis_sources:
            return None
        layer = self.manifest.target.early_exit_layer
        if layer is None or self._graph.early_exit is None:
            raise UsageError(
                f"Hypotheses from an early exit were asked for, and the bundle "
                f"{self.manifest.folder} has none for the target in {self._graph.flavour}-"
                f"{self._graph.precision}: build one with --early-exit-layer, or leave 'exit' out."
            )
        return layer

    def _drafter(self) -> Callable[[], Drafter]:
        """What loads the draft, as often as it must; a thread may keep it longer than this object.

        So it refers to nothing of this object, which then ends when nobody else needs it.
        """
        if self.draft == "lookup":
            return LookupDrafter
        load = partial(
            load_drafter,
            self.draft_manifest,
            vocabulary=self.text.vocabulary,
            per_pass=self.settings.draft_tokens_per_pass,
            provider=self.settings.draft_place,
            threads=self.layout.draft_threads,
            cores=self.layout.draft_cores,
            context=self.context,
            sharing=self.layout.sharing,
            pace=Pacer(self.devices, "draft") if self.devices else unpaced,
        )
        return partial(_lookup_first, load) if self.lookup_first else load


def tree_bound(graph: Graph) -> float:
    """In logits, how far the first choice must lead in a row of `graph` off a tree's trunk."""
    return max(4 * graph.parity.tree_difference, TREE_BOUNDS[graph.precision])


def _lookup_first(load: Callable[[], Drafter]) -> LookupFirst:
    return LookupFirst(load())


def _context(manifest: Manifest, graph: Graph, asked: int | None) -> int:
    """The context in tokens; UsageError for more than the model or its graph was made for."""
    most = min(manifest.target.geometry.context, graph.context or manifest.target.geometry.context)
    if asked is not None and not 2 <= asked <= most:
        raise UsageError(
            f"The context length is {asked}; {manifest.name} takes 2 to {most} tokens"
            f"{f' in its {graph.flavour} graph' if graph.context else ''}."
        )
    return asked or most
