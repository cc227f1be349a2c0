"""The flags that say on which device and by which execution provider a model runs."""

import argparse
from collections.abc import Callable
from typing import Any


def add_devices(group: argparse._ArgumentGroup) -> None:
    """Devices, providers, their libraries and options, of both models."""
    group.add_argument(
        "--device",
        metavar="WORD",
        help="of the target: CPU, GPU, GPU:1 for the second one, or NPU (default: CPU)",
    )
    group.add_argument("--draft-device", metavar="WORD", help="of the draft model (default: CPU)")
    group.add_argument(
        "-e",
        "--execution-provider",
        metavar="NAME",
        help="of onnxruntime, that runs the target, such as QNN, OpenVINO or WebGPU (default: the "
        "best that has the device)",
    )
    group.add_argument(
        "--draft-execution-provider",
        metavar="NAME",
        help="that runs the draft model (default: the best that has its device)",
    )
    group.add_argument(
        "--ep-library",
        dest="ep_libraries",
        action=Pairs,
        type=pair("NAME=PATH"),
        metavar="NAME=PATH",
        help="the file of a provider that no package brings; repeatable",
    )
    group.add_argument(
        "--provider-option",
        dest="provider_options",
        action=Pairs,
        type=pair("KEY=VALUE"),
        metavar="KEY=VALUE",
        help="of the target's provider, see docs/providers.md; repeatable",
    )
    group.add_argument(
        "--draft-provider-option",
        dest="draft_provider_options",
        action=Pairs,
        type=pair("KEY=VALUE"),
        metavar="KEY=VALUE",
        help="of the draft's; repeatable",
    )
    group.add_argument(
        "--allow-cpu-fallback",
        action="store_true",
        help="let operators that a provider does not take run on the CPU, and say which: without "
        "it they are an error",
    )


class Pairs(argparse.Action):
    """Collect what stands in several flags in one mapping; no key may stand twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """As argparse calls it."""
        key, value = values
        found = dict(getattr(namespace, self.dest) or {})
        if key in found:
            raise argparse.ArgumentError(self, f"{key} stands twice")
        setattr(namespace, self.dest, found | {key: value})


def pair(form: str) -> Callable[[str], tuple[str, str]]:
    """A reader of `form`, for argparse; the value may hold further equals signs."""

    def read(text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
        return key.strip(), value.strip()

    return read
