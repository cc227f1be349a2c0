"""The draft model of a bundle: which role it is, what its head is about, and how it is loaded."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import ModelDrafter
from runtime.errors import BundleError, UsageError
from runtime.flavours import choose_graph, open_graph
from runtime.manifest import Manifest, Role, RoleName
from runtime.providers import Place
from runtime.session import GraphSession, Pace, unpaced


def draft_role(manifest: Manifest) -> RoleName:
    """The role that drafts: a bundle without a draft model lends its target."""
    return "draft" if manifest.draft else "target"


def tokens_per_pass(manifest: Manifest, asked: int | None = None) -> int:
    """How many tokens a pass gives, the draft's own where `asked` is None.

    Raises UsageError for more than the draft was trained for.
    """
    own = manifest.role(draft_role(manifest)).tokens_per_pass
    if asked is not None and not 1 <= asked <= own:
        raise UsageError(
            f"draft_tokens_per_pass is {asked}, and the draft model of {manifest.folder} gives "
            f"{'one token' if own == 1 else f'1 to {own} tokens'} in a pass."
        )
    return own if asked is None else asked


def load_drafter(
    manifest: Manifest,
    *,
    vocabulary: int,
    per_pass: int | None = None,
    provider: str | Place = "CPU",
    pace: Pace = unpaced,
    **settings: Any,
) -> ModelDrafter:
    """The drafter on the graph that suits `provider`; `settings` as for `open_graph`.

    vocabulary: of the tokenizer; ids from there up are padding. per_pass: see `tokens_per_pass`.
    Raises BundleError for a graph or a list of tokens that the manifest does not bear out, and as
    `open_graph`.
    """
    session, head = open_draft(manifest, provider=provider, **settings)
    session.pace = pace
    return ModelDrafter(
        session,
        vocabulary=vocabulary,
        tokens_per_pass=tokens_per_pass(manifest, per_pass),
        head_tokens=head,
    )


def open_draft(
    manifest: Manifest, *, provider: str | Place = "CPU", **settings: Any
) -> tuple[GraphSession[Any], NDArray[np.int64] | None]:
    """The draft in the graph that suits `provider`, and the tokens its logits are about [n].

    None: the whole vocabulary. Raises as `load_drafter`.
    """
    name = draft_role(manifest)
    role = manifest.role(name)
    head = head_tokens(manifest.folder, role)
    session = open_graph(
        manifest.folder,
        choose_graph(manifest, name, provider),
        role.geometry,
        provider=provider,
        columns=None if head is None else len(head),
        **settings,
    )
    return session, head


def head_tokens(folder: Path, role: Role) -> NDArray[np.int64] | None:
    """The tokens that the logits of `role` are about; None: all. Raises as `load_head_tokens`."""
    if role.head_tokens is None:
        return None
    return load_head_tokens(folder / role.head_tokens, role.geometry.vocabulary)


def load_head_tokens(path: Path, vocabulary: int) -> NDArray[np.int64]:
    """The tokens that a draft's logits are about [n] int64, ascending, all below `vocabulary`.

    Raises BundleError for a file that is anything else than int32 [n] of these.
    """
    try:
        # Mapped, so that a header which promises more than there is takes no memory.
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy lets anything out that its parser of headers meets
        raise BundleError(
            f"{path} is no array that numpy reads; build the bundle again."
        ) from error
    if not isinstance(found, np.ndarray) or found.dtype != np.int32 or found.ndim != 1:
        raise BundleError(f"{path} is not a list of int32; build the bundle again.")
    tokens = np.array(found, np.int64)
    if not tokens.size or tokens[0] < 0 or tokens[-1] >= vocabulary or (np.diff(tokens) < 1).any():
        raise BundleError(
            f"{path} does not list tokens of the vocabulary of {vocabulary}, at least one and in "
            "ascending order; build the bundle again."
        )
    return tokens
