"""What a round may be asked to be like; refused before anything is loaded."""

from runtime.checks import one_of, whole
from runtime.errors import UsageError

MOST_DRAFT_TOKENS = 32
MOST_SIBLINGS = 32
MOST_COPIED_TOKENS = 32
MOST_HYPOTHESES = 64
AFTER_MISS = ("redraft", "verify")


def check_rounds(
    *,
    num_draft_tokens: int | None,
    num_siblings: int | None,
    num_copied_tokens: int,
    num_hypotheses: int | None,
    after_miss: str | None,
) -> None:
    """Refuse what no round can be like; UsageError."""
    check_draft_tokens(num_draft_tokens)
    if num_siblings is not None:
        whole("num_siblings", num_siblings, least=0, most=MOST_SIBLINGS)
    whole("num_copied_tokens", num_copied_tokens, least=0, most=MOST_COPIED_TOKENS)
    if num_hypotheses is not None:
        whole("num_hypotheses", num_hypotheses, least=0, most=MOST_HYPOTHESES)
    if after_miss is not None:
        one_of("after_miss", after_miss, AFTER_MISS)


def check_planned(strategy: str, *, num_copied_tokens: int, after_miss: str | None) -> None:
    """Refuse what a strategy that plans would not follow; UsageError."""
    if strategy != "auto":
        return
    for name, is_given, takes in (
        ("num_copied_tokens", num_copied_tokens > 0, "the strategies 'speculative' and 'mirror'"),
        ("after_miss", after_miss is not None, "the strategy 'mirror'"),
    ):
        if is_given:
            raise UsageError(
                f"{name} is for {takes}; 'auto' chooses that itself, round by round: leave it out, "
                "or take such a strategy."
            )


def takes_hypotheses(strategy: str, draft: str) -> bool:
    """Whether a draft of this kind follows outcomes of a round; what is copied costs nothing."""
    return strategy == "mirror" or (strategy == "auto" and draft == "model")


def check_hypotheses(strategy: str, draft: str, count: int | None) -> None:
    """Refuse a number of hypotheses where none are followed; UsageError."""
    if count is not None and not takes_hypotheses(strategy, draft):
        raise UsageError(
            "num_hypotheses is for the strategy 'mirror', and for 'auto' with a draft model; "
            f"{strategy!r} with the draft {draft!r} follows none: leave it out."
        )


def check_draft_tokens(count: int | None) -> None:
    """Refuse a length of a guess that is none; UsageError."""
    if count is not None:
        whole("num_draft_tokens", count, least=1, most=MOST_DRAFT_TOKENS)
