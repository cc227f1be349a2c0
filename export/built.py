"""Whether a folder already holds what a plan is to make."""

from pathlib import Path

from export.plan import Plan
from runtime.errors import BundleError, UsageError
from runtime.manifest import Manifest, Source


def is_built(plan: Plan, out: Path) -> bool:
    """Whether `out` already holds this plan's bundle, complete and undamaged.

    Raises UsageError when it holds anything else; an empty or absent folder is free to use.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        found = Manifest.load(out)
        found.verify()
    except (BundleError, OSError) as error:
        raise UsageError(
            f"{out} is in the way: it is neither empty nor a complete bundle ({error}) "
            "Remove it or name another folder."
        ) from error
    plan = plan.fitted(found.target.geometry)
    trained = (it.source if it else None for it in (plan.draft, plan.lenses))
    layer = plan.early_exit_layer
    wanted = (plan.name, _hashes(plan.source, *trained), set(plan.graphs), layer)
    roles = {"target": found.target, "draft": found.draft}
    held = {f"{name}/{key}" for name, role in roles.items() if role for key in role.graphs}
    sources = (found.source, found.draft_source, found.lenses_source)
    if (found.name, _hashes(*sources), held, found.target.early_exit_layer) != wanted:
        files = " and ".join(f"{it.file} ({it.sha256[:8]})" for it in sources if it is not None)
        raise UsageError(
            f"{out} holds another bundle, {found.name}, built from {files}: "
            f"{', '.join(sorted(held))}{_exit(found.target.early_exit_layer)}. "
            "Remove it or name another folder."
        )
    return True


def _exit(layer: int | None) -> str:
    return "" if layer is None else f", with an exit after layer {layer}"


def _hashes(*sources: Source | None) -> list[str | None]:
    return [source.sha256 if source else None for source in sources]
