"""The flags of `python -m export distill`, and what they start."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from export.distill.settings import Aim, Optimizer, Settings
from runtime.chat_flags import integer
from runtime.errors import UsageError

EPILOG = """\
A draft is distilled in stages: the target answers training prompts, its states are kept, a student
that begins as some of its layers learns from them, and is tried on held-out prompts. What a stage
makes stays in --out, so the same command goes on where it was interrupted, and a larger --tokens
trains on. The end is --out/draft.safetensors, which `mirror-export gguf FILE --draft` builds into
a bundle.

examples:
  mirror-export distill --target smollm2-135m --out work/draft
      a draft of half the layers, from nothing; hours on a few cores
  mirror-export distill --target smollm2-135m --out work/draft --corpus models/smollm2-135m-corpus
      the same from answers that are there; scripts/train_draft.sh makes the shipped one so
  mirror-export distill --target smollm2-135m --out work/small \\
      --from work/draft/draft.safetensors --depth 8 --tokens-per-pass 3
      a shallow draft, which begins as the best layers of a deep one
  mirror-export distill --target smollm2-135m --out work/try --prompts 8 --begun 0 --held-out 6 \\
      --max-new-tokens 16 --depth 2 --tokens 3000
      a trial of every stage, in minutes
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What a distillation may be told."""
    add = parser.add_argument
    add(
        "--target",
        required=True,
        metavar="MODEL",
        help="a recipe's name, a bundle with a float32 graph, or a GGUF file",
    )
    add("--out", required=True, type=Path, metavar="DIR", help="the folder to work in")
    add("--corpus", type=Path, metavar="DIR", help="answers that are there: make none")
    text = parser.add_argument_group("the text")
    _number(text, "--prompts", "how many prompts to draw from the templates")
    _number(text, "--begun", "how many conversations the target begins itself")
    _number(text, "--held-out", "how many held-out prompts it is tried on, of all kinds")
    _number(text, "--max-new-tokens", "the most tokens of an answer")
    _number(text, "--context", "the most tokens of a conversation")
    text.add_argument(
        "--precision",
        choices=("int8", "fp32"),
        default=argparse.SUPPRESS,
        help="of the target's graph that writes (default: int8)",
    )
    text.add_argument(
        "--workers",
        type=integer(least=1),
        metavar="N",
        help="processes that write (default: 1 per core)",
    )
    draft = parser.add_argument_group("the draft")
    layers = draft.add_mutually_exclusive_group()
    _number(
        layers,
        "--depth",
        "how many layers it has; which, is found out (default: half of the target's, or all of "
        "an earlier draft's)",
    )
    layers.add_argument(
        "--layers",
        type=_numbers,
        default=argparse.SUPPRESS,
        metavar="I,J,…",
        help="or: which of the target's layers it begins as, counted from 0",
    )
    draft.add_argument(
        "--from",
        dest="initial",
        type=Path,
        metavar="DRAFT",
        help="begin as an earlier draft of the same target, or as some of its layers",
    )
    _number(draft, "--head-width", "how many of the most used tokens it can name")
    _number(draft, "--tokens-per-pass", "how many tokens one forward pass predicts")
    draft.add_argument(
        "--lenses",
        type=_numbers,
        default=argparse.SUPPRESS,
        metavar="I,J,…",
        help="train tuned lenses too, to read the target after so many layers (default: none)",
    )
    _number(draft, "--lens-tokens", "of how many tokens of text the lenses learn")
    training = parser.add_argument_group("the training")
    _number(training, "--tokens", "the budget: tokens of text seen, repeats counted")
    training.add_argument(
        "--minutes", type=_minutes, help="or: stop after so long; go on another time"
    )
    _number(training, "--batch-tokens", "tokens of a step")
    training.add_argument(
        "--optimizer",
        choices=get_args(Optimizer),
        default=argparse.SUPPRESS,
        help="of the matrices; all else learns by AdamW (default: adamw)",
    )
    _number(training, "--rate", "the peak learning rate", float)
    _number(training, "--masks-from", "the share of the budget after which masks are tried", float)
    _number(training, "--blocks", "at what share of the places they are tried then", float)
    _number(training, "--mask-weight", "how much a mask counts beside a real token", float)
    training.add_argument(
        "--aim",
        choices=get_args(Aim),
        default=argparse.SUPPRESS,
        help="what is matched: the target's distribution, the same sharpened, or total variation "
        "(default: kl)",
    )
    training.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda where there is one (default: auto)",
    )
    _number(training, "--seed", "of all that is drawn by chance")


def run(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Distil as told. Raises UsageError, BuildError, BundleError, OSError."""
    settings = _settings(options)
    # Imported here so that --help works without torch.
    import torch

    from export.distill.project import Project
    from runtime import providers
    from runtime.locate import default_cache_dir, locate_bundle

    device, has_cuda = options.device, torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if has_cuda else "cpu"
    if device == "cuda" and not has_cuda:
        raise UsageError("--device cuda: torch finds no such device here; train on cpu.")
    cores = len(providers.usable_cores())
    torch.set_num_threads(cores)
    bundle = locate_bundle(
        options.target,
        cache_dir=default_cache_dir(os.environ, sys.platform),
        offline=False,
        progress=say,
    )
    project = Project(
        bundle,
        options.out,
        settings,
        corpus=options.corpus,
        initial=options.initial,
        device=device,
        workers=options.workers or cores,
        say=say,
    )
    project.run(minutes=options.minutes)


def _settings(options: argparse.Namespace) -> Settings:
    given: dict[str, Any] = {
        item.name: getattr(options, item.name)
        for item in fields(Settings)
        if hasattr(options, item.name)
    }
    return Settings(**given)


def _number(
    group: argparse._ArgumentGroup, flag: str, text: str, kind: Callable[[str], float] = int
) -> None:
    usual = getattr(Settings(target=""), flag.removeprefix("--").replace("-", "_"))
    text = text if usual is None else f"{text} (default: {usual})"
    group.add_argument(flag, type=kind, default=argparse.SUPPRESS, metavar="N", help=text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not minutes > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return minutes


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None
