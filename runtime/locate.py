"""From what a user names (a recipe, a bundle folder, a GGUF file) to a bundle folder."""

import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from runtime.command_line import INTERRUPTED
from runtime.errors import BuildError, BundleError, UsageError
from runtime.graph_names import DEFAULT_GRAPHS, USUAL
from runtime.integrity import load_checked
from runtime.manifest import FILE_NAME, RoleName

APPLICATION = "mirror-sd"
GGUF_MAGIC = b"GGUF"
CHILD_GRACE_S = 5.0
USUAL_GRAPHS: Mapping[RoleName, str] = MappingProxyType({})

Build = Callable[[Sequence[str]], int]
Check = Callable[[Path], None]


def locate_bundle(
    model: str | Path,
    *,
    cache_dir: Path | None,
    offline: bool,
    progress: Callable[[str], None],
    verify: bool = False,
    recipes: Path | None = None,
    build: Build | None = None,
    graphs: Mapping[RoleName, str] = USUAL_GRAPHS,
) -> Path:
    """The folder of the bundle that `model` names, checked; built on first use into `cache_dir`.

    A recipe's name wins over a path of the same spelling ("./NAME" means the path). Every file's
    sha256 is checked; with `verify` also that of files that are unchanged since the last time.
    `recipes` is the folder of recipes, by default the package's own; `build` gets the export
    command's arguments and returns its exit code, by default from a child process.
    `graphs` it must have, by role, as in gpu-fp16: where the usual bundle lacks one, another is
    built in a folder of its own, with the usual graphs of a role that `graphs` does not name. A
    bundle's folder that was named stays as it is.
    Raises UsageError for a name that means nothing, BundleError for a folder or file of the wrong
    kind, for a damaged bundle, and for a recipe that `offline` forbids to build, BuildError when
    the build fails.
    """
    known = known_recipes(recipes or recipe_folder())
    cache = cache_dir or default_cache_dir(os.environ, sys.platform)

    def check(folder: Path) -> None:
        load_checked(folder, records=cache / "checked", in_full=verify, progress=progress)

    needs_network = isinstance(model, str) and model in known
    if not needs_network:
        model = _named_path(model, sorted(known))
        if model.is_dir():
            check(model)
            return model.absolute()
    folder, arguments, own = _kept(model, known, cache, graphs)
    reason = _unusable(folder, check)
    if reason is None:
        return folder
    if offline and needs_network:
        raise BundleError(
            f"{model} cannot be built offline: {reason} Run once without --offline, "
            "or name a bundle folder or a GGUF file."
        )
    with _cache_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=folder.parent).cleanup()
    takes = "a minute or two" if not own else f"some minutes, with {' and '.join(own)}"
    progress(f"{reason} Building it once; this takes {takes}.")
    with _cache_errors(folder.parent):
        # Judged anew: another process may have put a good bundle there since.
        if folder.exists() and _unusable(folder, check) is not None:
            _set_aside(folder)
    code = (build or run_export)(arguments)
    # Another process may have built the same bundle meanwhile: what counts is that it is there.
    after = _unusable(folder, check)
    if after is not None:
        ended = f"with exit code {code}." if code else f"well, but {after}"
        raise BuildError(f"{model} could not be built: the export ended {ended}")
    return folder


def cached_bundle(model: str, *, cache_dir: Path, recipes: Path | None = None) -> Path | None:
    """Where the bundle of a recipe's name or of a GGUF file is kept, built or not.

    None for what is neither. Raises BundleError for a file that cannot be read, and OSError.
    """
    found = cached_bundles(model, USUAL_GRAPHS, cache_dir=cache_dir, recipes=recipes)
    return None if found is None else found[0][0]


def cached_bundles(
    model: str, graphs: Mapping[RoleName, str], *, cache_dir: Path, recipes: Path | None = None
) -> tuple[list[Path], list[str]] | None:
    """Folders for bundles of a recipe's name or of a GGUF file, and how the first is built.

    The first is for one with these graphs by role, built or not; the others are there. How: what
    `python -m export` is told. None for what is neither; raises as `cached_bundle`.
    """
    known = known_recipes(recipes or recipe_folder())
    if model not in known and not is_gguf(Path(model)):
        return None
    folder, arguments, _ = _kept(model, known, cache_dir, graphs)
    usual, _, _ = _kept(model, known, cache_dir, USUAL_GRAPHS)
    pattern = f"{glob.escape(usual.name)}*/{FILE_NAME}"
    there = sorted(path.parent for path in usual.parent.glob(pattern))
    return [folder, *(path for path in there if path != folder)], arguments


def is_gguf(path: Path) -> bool:
    """Whether this is a file that begins as GGUF does; BundleError when it cannot be read."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            return stream.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error


def default_cache_dir(environ: Mapping[str, str], platform: str) -> Path:
    """The folder for this program's cached files, by the custom of `platform` (sys.platform).

    Raises UsageError where this user has no home folder.
    """
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or _home())
    if platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif Path(environ.get("XDG_CACHE_HOME", "")).is_absolute():
        base = Path(environ["XDG_CACHE_HOME"])
    else:
        base = home / "Library" / "Caches" if platform == "darwin" else home / ".cache"
    return base / APPLICATION


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError(
            "There is no home folder to keep a cache in: set HOME, or name a folder with "
            "--cache-dir (cache_dir in a program)."
        ) from error


def recipe_folder() -> Path:
    """Where the recipes lie: inside the installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parent
    installed = package / "_models"
    return installed if installed.is_dir() else package.parent / "models"


def known_recipes(folder: Path) -> dict[str, Path]:
    """The recipes in `folder` by name; JSON files that state no source are something else."""
    recipes = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(data, dict) and "source" in data:
            recipes[path.stem] = path
    return recipes


def run_export(arguments: Sequence[str]) -> int:
    """Run `python -m export` with `arguments` and return its exit code.

    The child says on the inherited standard error what it does. Its standard output and input are
    closed to it: they carry the caller's answers and questions. Raises BuildError when the
    packages that a build needs are not installed.
    """
    missing = [name for name in ("onnx", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        raise BuildError(
            f"Building a bundle needs {' and '.join(missing)}: "
            f"python -m pip install {' '.join(missing)}"
        )
    command = module_command("export", *arguments)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            # The terminal sent the child its own interrupt: leave it the time to tidy up.
            try:
                ended = child.wait(CHILD_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
            if ended == INTERRUPTED:
                raise KeyboardInterrupt("the export has said so") from None
            raise


def module_command(module: str, *arguments: str) -> list[str]:
    """A command that runs a module of this project, whatever lies in the user's folder."""
    root = str(Path(__file__).resolve().parent.parent)
    # -P keeps an export.py in the user's folder out; the root goes last, behind the standard
    # library, which a site-packages folder on PYTHONPATH would shadow.
    code = (
        "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-P", "-c", code, root, *arguments]


@contextlib.contextmanager
def _cache_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"The cache folder {folder} cannot be written ({error.strerror or error}); "
            "name another with --cache-dir."
        ) from error


def _set_aside(folder: Path) -> None:
    """Remove an unusable bundle in one step, so that no other process meets half of it.

    Whoever is stopped in the midst leaves a folder that the export takes for a build's, and removes
    when it is old.
    """
    with (
        tempfile.TemporaryDirectory(
            prefix=".old.building-", dir=folder.parent, ignore_cleanup_errors=True
        ) as trash,
        contextlib.suppress(FileNotFoundError),
    ):
        folder.rename(Path(trash) / folder.name)


def _unusable(folder: Path, check: Check) -> str | None:
    """Why the cached bundle cannot be used, as a sentence; None when it can."""
    try:
        if not folder.exists():
            return f"There is no bundle in {folder} yet."
        check(folder)
    except OSError as error:  # a folder that may not be entered, or with too long a name
        raise BundleError(
            f"The cache folder {folder.parent} cannot be used ({error.strerror or error}); "
            "name another with --cache-dir."
        ) from error
    except BundleError as error:
        return f"The cached bundle in {folder} cannot be used: {error}"
    return None


def _named_path(model: str | Path, recipes: Sequence[str]) -> Path:
    """The bundle's folder or the GGUF file that is named; errors as `locate_bundle`."""
    try:
        path = Path(model).expanduser()
    except RuntimeError as error:  # ~name of nobody here
        raise UsageError(f"{model} cannot be found: {error}") from error
    try:
        is_folder = path.is_dir()
    except OSError as error:  # too long a name, or one on a medium that fails
        raise UsageError(f"{str(model)[:200]} cannot be used: {error.strerror}.") from error
    if is_folder:
        _refuse_other_folders(path)
        return path
    if not path.is_file():
        raise _nothing_there(str(model), recipes)
    if not is_gguf(path):
        raise BundleError(
            f"{path} is not a GGUF file: it does not begin with {GGUF_MAGIC.decode()}."
        )
    return path


def _refuse_other_folders(path: Path) -> None:
    if (path / FILE_NAME).is_file():
        return
    hint = "Build a bundle with: python -m export gguf MODEL.gguf --out BUNDLE"
    found = next(iter(sorted(path.glob("*.gguf"))), None)
    if found is not None:
        hint = f"It holds a GGUF file: name that instead, {found}"
    raise BundleError(f"The folder {path} is not a bundle: it has no {FILE_NAME}. {hint}")


def _kept(
    model: str | Path, known: Mapping[str, Path], cache: Path, graphs: Mapping[RoleName, str]
) -> tuple[Path, list[str], list[str]]:
    """The folder for a recipe's or a GGUF file's bundle, what builds it, and what is unusual in it.

    Of `graphs` those that the usual bundle lacks.
    """
    usual: Sequence[str] = DEFAULT_GRAPHS
    if isinstance(model, str) and model in known:
        folder = _recipe_place(cache, known[model])
        arguments = ["recipe", model, "--keep-fetched", str(cache.absolute() / "fetched")]
        usual = _recipe_graphs(known[model])
    else:
        path = Path(model)
        folder, arguments = _gguf_place(cache, path), ["gguf", str(path.resolve())]
    named = {role: f"{role}/{key}" for role, key in graphs.items()}
    own = {role: name for role, name in named.items() if name not in usual}
    if own:
        folder = folder.with_name("-".join([folder.name, *own.values()]).replace("/", "-"))
        every = [own.get(role, f"{role}/{USUAL}") for role in get_args(RoleName)]
        arguments += ["--graphs", ",".join(every)]
    return folder, [*arguments, "--out", str(folder)], list(own.values())


def _recipe_graphs(recipe: Path) -> Sequence[str]:
    """Those that a recipe names; one that cannot be read is the export's to refuse."""
    found = json.loads(recipe.read_text(encoding="utf-8")).get("graphs")
    return found if isinstance(found, list) else ()


def _recipe_place(cache: Path, recipe: Path) -> Path:
    """The folder for the bundle of a recipe as its file is now."""
    key = hashlib.sha256(recipe.read_bytes()).hexdigest()[:12]
    return cache.absolute() / "bundles" / f"{recipe.stem}-{key}"


def _gguf_place(cache: Path, path: Path) -> Path:
    """The folder for a file's bundle; size and time stand for the bytes, as hashing is slow."""
    place, status = path.resolve(), path.stat()
    identity = f"{place}\n{status.st_size}\n{status.st_mtime_ns}"
    key = hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in place.stem)
    return cache.absolute() / "bundles" / f"{stem[:60]}-{key}"


def _nothing_there(model: str, recipes: Sequence[str]) -> UsageError:
    names = ", ".join(recipes) or "none"
    separators = {os.sep, os.altsep or os.sep, "/"}
    if model.lower().endswith(".gguf") or any(separator in model for separator in separators):
        return UsageError(f"There is no file or folder {model}. Known recipes: {names}.")
    return UsageError(
        f"{model!r} is no known recipe and no file or folder here. Known recipes: {names}."
    )
