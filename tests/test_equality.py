"""On the real pair: the same text from bit-equal logits, whichever engine writes it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtime import open_session
from runtime.fused import FusedSession
from runtime.hypotheses import USUAL_SOURCES
from runtime.manifest import Manifest
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive
from runtime.verify import Proposal
from scripts.check_equality import PROMPTS, prompts
from scripts.equality.pair import MODELS, Pair
from scripts.equality.recorder import differences
from scripts.equality.settings import ALONE, SAMPLINGS, Setting, by_pairs
from tests.small_trees import Given
from tests.table import write

pytestmark = pytest.mark.real_model

TOKENS = 24
FEW_TOKENS = 16
CHOSEN_PROMPTS = (0, 8, 12, 17, 25, 31, 33, 38)  # one or two of every kind


@pytest.fixture(scope="module")
def int8(smollm: Path) -> Iterator[Pair]:
    pair = Pair(smollm, "int8")
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def questions(smollm: Path) -> list[list[int]]:
    every = prompts(smollm, PROMPTS)
    return [every[number] for number in CHOSEN_PROMPTS]


def test_every_setting_writes_the_text_of_the_target_alone(
    int8: Pair, questions: list[list[int]]
) -> None:
    """All pairs of values of all factors, over eight prompts; what counts says who had a part."""
    found = []
    accepted: Counter[str] = Counter()
    off_trunk, exits = 0, 0
    for number, setting in enumerate(by_pairs()):
        place = number % len(questions)
        written, failures = int8.check(questions[place], setting, place, FEW_TOKENS)
        found += [f"{place} {setting}: {failure}" for failure in failures]
        accepted[setting.draft] += written.metrics.draft_tokens_accepted
        off_trunk += written.off_trunk
        exits += written.metrics.hits["exit"]
    assert not found
    assert all(accepted[draft] > 0 for draft in (*MODELS, "lookup", "runner-up"))
    assert off_trunk > 10
    assert exits > 0


@pytest.mark.parametrize(("draft", "second"), [("model", 0.15), ("model one by one", 0.35)])
def test_the_draft_agrees_with_the_target(
    int8: Pair, questions: list[list[int]], draft: str, second: float
) -> None:
    """A draft of other weights, or with its mask tokens mixed up, names hardly any token."""
    right: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    passes, rounds = 0, 0
    for prompt in questions:
        metrics = int8.write(prompt, Setting("speculative", draft), 0, TOKENS).metrics
        right, seen = right + metrics.accepted_at, seen + metrics.evaluated_at
        passes, rounds = passes + metrics.draft.passes, rounds + metrics.rounds
    assert right[0] / seen[0] > 0.4
    assert right[1] / seen[1] > second
    assert (passes < 1.5 * rounds) == (draft == "model"), "a pass gives five tokens, or one"


def test_float32_is_as_exact(smollm: Path, questions: list[list[int]]) -> None:
    pair = Pair(smollm, "fp32")
    found = []
    for number, setting in enumerate(by_pairs()[::7]):
        found += pair.check(questions[number], setting, number, 8)[1]
    pair.close()
    assert not found


def test_trees_leave_the_text_as_it_is(smollm: Path, questions: list[list[int]]) -> None:
    manifest = Manifest.load(smollm)
    path, geometry = manifest.graph_path("target", "int8"), manifest.target.geometry
    session = FusedSession(path, geometry, threads=2, context=512)
    off_trunk = 0
    for number, prompt in enumerate(questions):
        sampling = Sampling(0.8 * (number % 2), top_k=50 * (number % 2), seed=number)
        plain = write(session, Autoregressive(), prompt, sampling, max_new_tokens=TOKENS)

        def beside_a_wrong_trunk(room: int, text: tuple[int, ...] = plain.tokens) -> Proposal:
            rest = text[len(text) - room - 1 :][: min(room, 4)]
            wrong = tuple(token + 1 for token in rest[:1])
            return Proposal(wrong + rest, (-1,) * (2 * len(wrong)) + tuple(range(1, len(rest))))

        strategy = Given(beside_a_wrong_trunk)
        found = write(session, strategy, prompt, sampling, max_new_tokens=TOKENS, tree_bound=0.15)
        assert found.tokens == plain.tokens
        off_trunk += found.metrics.draft_tokens_accepted
    assert off_trunk > 0.6 * len(questions) * TOKENS


def test_the_draft_works_while_the_target_does_and_its_guesses_hit(
    int8: Pair, questions: list[list[int]]
) -> None:
    hits, inside = 0, 0
    for prompt in questions[:4]:
        # One pass of the target is too short for many guesses beside it; eight are not.
        setting = Setting("mirror", "model", 1, USUAL_SOURCES, 8)
        written = int8.write(prompt, setting, 0, TOKENS, repeats=8)
        hits += written.metrics.rounds_foreseen
        inside += sum(
            any(
                run.start <= each.start and each.end <= run.end
                for run in written.metrics.target_runs
            )
            for each in written.metrics.draft.runs
        )
    assert hits > 0
    assert inside > 0


def test_a_difference_would_be_seen(int8: Pair, questions: list[list[int]]) -> None:
    one, other = (
        int8.write(questions[0], replace(ALONE, sampling=SAMPLINGS[1]), seed, 8) for seed in (1, 2)
    )
    assert list(differences(one, other))
    assert not list(differences(one, one))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_shallow_draft_leaves_the_text_as_it_is(
    smollm_shallow: Path, tmp_path: Path, temperature: float
) -> None:
    settled, rounds = 0.0, 0
    with open_session(smollm_shallow, cache_dir=tmp_path, draft="model") as session:
        assert session.settings["draft_tokens_per_pass"] == 3
        for seed, text in enumerate(("Why is the sky blue?", "Count from one to twenty.")):
            question = [{"role": "user", "content": text}]
            texts = []
            for strategy in ("autoregressive", "speculative", "mirror", "speculative"):
                session.strategy = strategy
                assert session.settings["num_draft_tokens"] == (
                    4 if strategy == "speculative" else 2
                )
                sampling = Sampling(temperature=temperature, seed=seed)
                answer = session.generate(question, sampling, max_new_tokens=TOKENS)
                texts.append("".join(answer))
            assert len(set(texts)) == 1
            rounds += answer.metrics.rounds
            settled += answer.metrics.rounds * answer.metrics.to_dict()["mean_acceptance_length"]
    assert settled > 1.2 * rounds
