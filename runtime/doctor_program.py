"""What `runtime.doctor` runs: it looks around, tries things in child processes, and reports."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runtime.command_line import FAILED, OK, exit_code, flush, readied, runtime_open_session
from runtime.doctor_flags import PROGRAM, Options, parse
from runtime.errors import UsageError
from runtime.locate import locate_bundle
from runtime.screen import Screen

if TYPE_CHECKING:  # onnxruntime is loaded after the flags are read
    from runtime.doctor_roles import Pair, RoleCheck
    from runtime.doctor_tries import Found, Tries
    from runtime.manifest import RoleName

Locate = Callable[..., Path]
ROLES: "tuple[RoleName, ...]" = ("target", "draft")


def main(
    argv: Sequence[str] | None = None,
    *,
    locate: Locate = locate_bundle,
    new_tries: "Callable[..., Tries] | None" = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run the doctor and return its exit code: 0 (the pair can run), 1, 2 (usage), 130.

    Everything the process offers can be given instead; `new_tries` stands for `doctor_tries.Tries`.
    """
    out, err = readied(stdout or sys.stdout), readied(stderr or sys.stderr)
    screen = Screen(out, err)
    doctor = _Doctor(out, screen, os.environ if environ is None else environ, locate, new_tries)
    arguments = sys.argv[1:] if argv is None else argv
    code = exit_code(PROGRAM, lambda: doctor.run(arguments), screen.note)
    flush(out, err)
    return code


@dataclasses.dataclass(frozen=True, slots=True)
class _Doctor:
    """The streams of one run, and what it is done with."""

    stdout: TextIO
    screen: Screen
    environ: Mapping[str, str]
    locate: Locate
    new_tries: "Callable[..., Tries] | None"

    def run(self, argv: Sequence[str]) -> int:
        """Do what `argv` says; errors pass through."""
        try:
            with contextlib.redirect_stdout(self.stdout):
                options = parse(argv)
        except SystemExit:  # --help or --version, and all is said
            return OK
        runtime_open_session()  # which says what is not installed
        from runtime.doctor_report import document
        from runtime.doctor_text import rows, shown

        found = self._examined(options)
        report = document(**found)
        if options.report:
            for row in rows(report):
                self._print(row)
            for reason in report["pair"]["reasons"]:
                self.screen.note(reason)
        elif options.json:
            self._print(json.dumps(report, allow_nan=False))
        else:
            self._print(shown(report))
        return OK if report["pair"]["can_run"] else FAILED

    def _print(self, text: str) -> None:
        self.screen.piece(text)
        self.screen.end_answer()

    def _examined(self, options: Options) -> dict[str, Any]:
        """What `doctor_report.document` takes."""
        from runtime import doctor_roles as roles
        from runtime.doctor_machine import examine, surroundings
        from runtime.doctor_tries import Tries
        from runtime.places import libraries_of
        from runtime.providers import Place, key_of

        for role in ROLES:
            if options.asked[role]["execution_provider"] is not None:
                key_of(role, options.asked[role]["execution_provider"])
        new_tries = self.new_tries or Tries
        libraries = libraries_of(options.ep_libraries)
        tries = new_tries(self.screen.note, libraries, options.time_limit_s)
        report = self.screen.note if options.allow_cpu_fallback else None
        checks = [roles.find_place(role, options.asked, tries, report) for role in ROLES]
        if report is not None and all(check.place == Place("CPU") for check in checks):
            raise UsageError("--allow-cpu-fallback is for devices, and none is asked for: drop it.")
        pair = self._pair(options, *checks)
        providers = tries.providers()
        for key, found in providers.items():
            for device in found["devices"]:
                place = Place(key, device["kind"], device["number"], library=libraries.get(key))
                device["smoke"] = tries.smoke(place)
        self._check(checks, providers, pair, tries, options)
        return {
            "machine": examine(),
            "providers": providers,
            "checks": checks,
            "pair": pair,
            "asked": options.asked,
            "here": surroundings(self.environ, frozenset()),
        }

    def _pair(self, options: Options, own: "RoleCheck", drafts: "RoleCheck") -> "Pair | None":
        """The bundles, built for the places where they are not; None without a model."""
        from runtime.doctor_roles import Pair
        from runtime.manifest import Manifest
        from runtime.providers import Place
        from runtime.wanted import Wanted, for_draft, for_target

        def located(name: str, graphs: Wanted) -> Manifest:
            folder = self.locate(
                name,
                cache_dir=options.cache_dir,
                offline=options.offline,
                progress=self.screen.note,
                verify=options.verify,
                graphs=graphs,
            )
            return Manifest.load(folder)

        if options.model is None:
            return None
        place, draft_place = own.place or Place("CPU"), drafts.place or Place("CPU")
        of_own = draft_place if options.draft_model is None else None
        target = located(options.model, for_target(place, of_own, options.precision))
        draft: Manifest | None = target
        if options.draft_model is not None:
            draft = located(options.draft_model, for_draft(draft_place))
        elif target.draft is None:
            draft = None
            if drafts.named:
                raise UsageError(
                    f"The bundle {target.folder} has no draft model, and one was asked for: name "
                    "it with --draft-model, or leave its flags out."
                )
        return Pair(target, draft, options.precision, options.context_length)

    def _check(
        self,
        checks: "list[RoleCheck]",
        providers: "Mapping[str, Found]",
        pair: "Pair | None",
        tries: "Tries",
        options: Options,
    ) -> None:
        """Fill in what each role does in its place."""
        from runtime.doctor_roles import check_graphs, check_smoke

        reported = [check for check in checks if check.named] or checks[:1]
        for check in checks:
            check_smoke(check, providers, tries)
            if pair is not None:
                tokens = options.tokens if options.report and check in reported else None
                if check in reported or not options.report:
                    check_graphs(check, pair, tries, tokens=tokens)
