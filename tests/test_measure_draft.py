"""Tests of scripts/measure_draft.py: its counts on small tables, its rounds beside a session's."""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export import draft_file, gguf_file
from export.__main__ import main
from runtime import Sampling, models, open_session
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.prompts import Prompt
from runtime.text import Text
from scripts.draft import acceptance, agreement, cost
from scripts.draft.acceptance import SEED, TEMPERATURES, Replay, Setting
from scripts.draft.texts import AFTER, KINDS, Writer, Written, by_kind, prompts_of_kinds
from scripts.measure_draft import _parts, markdown
from tests.drafts import TOKENS_PER_PASS, tiny_draft
from tests.table import TableTarget
from tests.table_session import TableSession, model_drafter

NEW = 24
HEADS = 200
PROMPTS = (
    Prompt(1, "qa", ("the in",)),
    Prompt(2, "multi_turn", ("12", "or")),
    Prompt(3, "rag", ("an er",)),
)


@pytest.fixture(scope="module")
def manifest(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """With a draft of all layers, so that it agrees now and then."""
    folder = tmp_path_factory.mktemp("measured")
    draft, target = folder / "draft.safetensors", gguf_file.read(tiny_gguf).model
    layers = range(target.geometry.layers)
    draft_file.save(draft, tiny_draft(target, layers, heads=HEADS), target, layers)
    graphs = "target/fused-int8,draft/fused-int8"
    command = ["gguf", str(tiny_gguf), "--out", str(folder / "b"), "--draft", str(draft)]
    assert main([*command, "--graphs", graphs]) == 0
    return Manifest.load(folder / "b")


@pytest.fixture(scope="module")
def writer(manifest: Manifest) -> Iterator[Writer]:
    with Writer(manifest, threads=1) as found:
        yield found


@pytest.fixture(scope="module")
def texts(writer: Writer) -> dict[float, list[Written]]:
    return {
        temperature: writer.write(PROMPTS, Sampling(temperature, seed=SEED), max_new_tokens=NEW)
        for temperature in TEMPERATURES
    }


def test_ranks_count_the_tokens_that_are_preferred() -> None:
    head = np.array([2, 5, 7, 9])
    rows = np.random.default_rng(1).integers(0, 3, (50, 4)).astype(np.float32)
    wanted = np.random.default_rng(2).integers(0, 11, 50)
    expected = []
    for row, token in zip(rows, wanted, strict=True):
        order = sorted(zip(-row, head, strict=True))
        names = [name for _, name in order]
        expected.append(names.index(token) if token in names else 4)
    assert set(expected) == {0, 1, 2, 3, 4}
    assert agreement.ranks(rows, head, wanted).tolist() == expected


def test_shares_of_the_next_token() -> None:
    found = agreement.next_shares(np.array([0, 0, 4, 5, 7, 8, 19, 20, 20, 20]), 20)
    assert found == {"tokens": 10, "first": 0.2, "among_5": 0.3, "among_8": 0.5, "covered": 0.7}


def test_shares_of_places_alone_and_together() -> None:
    right = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 0], [0, 1, 1, 1, 0], [1, 1, 1, 1, 0]], bool)
    assert agreement.place_shares(right) == {
        "texts": 4,
        "each": [0.75, 0.75, 0.75, 1.0, 0.0],
        "all_up_to": [0.75, 0.5, 0.25, 0.25, 0.0],
    }
    assert agreement.place_shares(right[:0])["each"] is None


@pytest.mark.parametrize("per_pass", [1, 3, 5])
def test_guesses_are_made_after_every_fourth_token(per_pass: int) -> None:
    session = TableSession(TableTarget(seed=4), 64)
    tokens = np.random.default_rng(5).integers(0, 4, 23)
    expected = []
    for start in (13, 9, 5):
        text = tokens[:start].tolist()
        while len(text) < start + 5:
            known = np.array(text)
            for place in range(min(per_pass, start + 5 - len(text))):
                text.append(int(session.row(known, place).argmax()))
        expected.append((np.array(text[start:]) == tokens[start : start + 5]).tolist())
    drafter = model_drafter(session, tokens_per_pass=per_pass)
    found = agreement.guesses_right(drafter, Written("qa", 5, tokens[:18], tokens[:0]))
    assert found.tolist() == expected
    assert agreement.guesses_right(drafter, Written("qa", 5, tokens[:9], tokens[:0])).shape == (
        0,
        5,
    )


def test_figures_by_kind_come_in_order_and_end_with_all() -> None:
    found = by_kind([("rag", 1), ("qa", 2), ("rag", 4)], sum)
    assert list(found.items()) == [("qa", 2), ("rag", 5), ("overall", 7)]


def test_prompts_are_of_the_six_kinds() -> None:
    assert Counter(prompt.category for prompt in prompts_of_kinds(2)) == dict.fromkeys(KINDS, 2)
    assert len(prompts_of_kinds(None)) == 120


def test_answers_are_those_of_a_session_with_their_end_tokens(
    manifest: Manifest, writer: Writer
) -> None:
    ended = 0
    with open_session(manifest.folder, draft="none", threads=1) as session:
        for seed in range(6):
            sampling = Sampling(3.0, seed=seed)
            first = writer.write(PROMPTS[:1], sampling, max_new_tokens=60)[0]
            answer = session.generate(
                [{"role": "user", "content": "the in"}], sampling, max_new_tokens=60
            )
            assert sum(map(len, answer)) == len(answer.text)
            own = first.tokens[first.start :].tolist()
            assert own[: len(answer.tokens)] == answer.tokens
            assert len(own) - len(answer.tokens) == (answer.finish_reason == "eos")
            assert len(first.after) == (AFTER if answer.finish_reason == "eos" else 0)
            if answer.finish_reason == "eos":
                ended += 1
                assert own[-1] in manifest.target.end_tokens
    assert ended


def test_a_turn_comes_after_the_answer_to_the_one_before(
    manifest: Manifest, texts: dict[float, list[Written]]
) -> None:
    assert [text.kind for text in texts[0.0]] == ["qa", "multi_turn", "rag", "multi_turn"]
    messages = []
    encode = Text.load(manifest.folder).encode_chat
    with open_session(manifest.folder, draft="none", threads=1) as session:
        for turn, text in zip(PROMPTS[1].turns, texts[0.0][1::2], strict=True):
            messages.append({"role": "user", "content": turn})
            assert text.tokens[: text.start].tolist() == encode(messages)
            answer = session.generate(messages, Sampling(), max_new_tokens=NEW)
            messages.append({"role": "assistant", "content": "".join(answer)})
            assert text.tokens[text.start :][: len(answer.tokens)].tolist() == answer.tokens


def test_a_replay_waits_for_the_draft_and_knows_its_text() -> None:
    ready = iter([False, True])
    tokens = np.array([3, 1, 2, 0])
    target = Replay(tokens, vocabulary=4, context=9, ready=lambda: next(ready))
    assert [target.prefill(tokens), target.prefill(tokens)] == [False, True]
    rows = target.extend(np.array([3, 1, 3, 3]), num_logits=3)
    assert rows[:2].argmax(axis=1).tolist() == [2, 0]
    assert np.isfinite(rows).sum(axis=1).tolist() == [1, 1, 0]


def test_replaying_settles_what_a_session_with_its_target_does(
    manifest: Manifest, texts: dict[float, list[Written]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The draft itself is measured, so the session does not copy what stood before either.
    monkeypatch.setattr(models, "_lookup_first", lambda load, **_rest: load())
    found = acceptance.measure(
        manifest, texts, max_new_tokens=NEW, threads=1, say=lambda _line: None
    )
    figures = {Setting(*(of[name] for name in Setting.__slots__)): of["kinds"] for of in found}
    assert len(figures) == len(found) == 2 * (2 + 2 + 2) + 2 * 2  # the last: noise of its own
    shared, own = True, False
    for per_pass, count in ((TOKENS_PER_PASS, 4), (1, 8), (None, 4)):
        for temperature, expected in session_figures(manifest, per_pass, count).items():
            assert figures[Setting(per_pass, shared, temperature, count)]["qa"] == expected
    lengths = {of: kinds["overall"]["mean_acceptance_length"] for of, kinds in figures.items()}
    assert lengths[Setting(1, shared, 0.0, 4)] > 1.2
    assert lengths[Setting(1, shared, 0.8, 4)] > lengths[Setting(1, own, 0.8, 4)]
    head, rows = next(iter(acceptance.tables(found)))
    assert head == ("tokens", "T", "drafts", "qa", "rag", "multi_turn", "overall")
    assert [row[:3] for row in rows[:5]] == [
        ("4", "0", "draft, 3 a pass"),
        ("4", "0", "draft, 1 a pass"),
        ("4", "0", "prompt lookup"),
        ("4", "0.8", "draft, 3 a pass"),
        ("4", "0.8", "draft, 3 a pass, noise of its own"),
    ]


def session_figures(
    manifest: Manifest, per_pass: int | None, count: int
) -> dict[float, dict[str, Any]]:
    """What a session says of its answer to the first prompt, by temperature."""
    found = {}
    with open_session(
        manifest.folder,
        draft="lookup" if per_pass is None else "model",
        strategy="speculative",
        num_draft_tokens=count,
        draft_tokens_per_pass=per_pass,
        draft_time_limit_s=60.0,
        threads=1,
    ) as session:
        for temperature in TEMPERATURES:
            question = [{"role": "user", "content": PROMPTS[0].turns[0]}]
            sampling = Sampling(temperature, seed=SEED)
            answer = session.generate(question, sampling, max_new_tokens=NEW)
            assert sum(map(len, answer)) == len(answer.text)
            metrics = answer.metrics.to_dict()
            found[temperature] = {name: metrics[name] for name in acceptance.FIGURES}
    return found


def test_agreement_on_a_bundle(manifest: Manifest, texts: dict[float, list[Written]]) -> None:
    found = agreement.measure(manifest, texts[0.0], threads=1, say=lambda _line: None)
    assert found["head_tokens"] == HEADS
    assert list(found["next"]) == ["qa", "rag", "multi_turn", "overall"]
    of = found["next"]["overall"]
    assert of["tokens"] == sum(len(text.tokens) - text.start for text in texts[0.0])
    assert 0 <= of["first"] <= of["among_5"] <= of["among_8"] <= of["covered"] < 1
    assert list(found["places"]) == [str(TOKENS_PER_PASS), "1"]
    one, several = (by_name["overall"]["each"] for by_name in found["places"].values())
    assert one[0] == several[0]
    (next_head, next_rows), (_, place_rows) = agreement.tables(found)
    assert len(next_head) == len(next_rows[0]) == 6
    assert [row[:2] for row in place_rows[:2]] == [("qa", "3"), ("qa", "1")]


def test_figures_of_many_answers_are_of_their_rounds() -> None:
    runs = []
    for rounds, settled in ((2, 3), (6, 13)):
        runs.append(Metrics("speculative", 0, {}, rounds=rounds, settled_tokens=settled))
        runs[-1].draft_tokens_proposed, runs[-1].draft_tokens_accepted = 2 * rounds, rounds
        runs[-1].evaluated_at, runs[-1].accepted_at = Counter({0: rounds}), Counter({0: 1})
    assert acceptance.pooled(runs) == {
        "rounds": 8,
        "mean_acceptance_length": 2.0,
        "acceptance_rate": 0.5,
        "per_place_acceptance": [0.25],
    }


class Fed:
    """A session that notes what it is fed: how many tokens are not cached yet, and logits."""

    vocabulary = 50

    def __init__(self) -> None:
        self.cached: list[int] = []
        self.fed: list[tuple[list[int], int]] = []

    def extend(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> None:
        text = tokens.tolist()
        same = [a == b for a, b in zip(text, self.cached, strict=False)]
        common = min([*same, False].index(False), len(text) - num_logits)
        self.fed.append((text[common:], num_logits))
        self.cached = text


def test_each_timed_call_feeds_only_what_it_is_about() -> None:
    draft, target = Fed(), Fed()
    timed = cost.calls(draft, target, np.arange(17), 3)  # type: ignore[arg-type]
    ticks = iter(range(1000))
    found = cost.medians_ms(timed, repeats=2, clock=lambda: next(ticks))
    assert found == dict.fromkeys(timed, 1000.0)
    assert target.fed[2:4] == [([12], 1), ([12, 13, 14, 15, 16], 5)]
    assert draft.fed[5:10] == [([12], 1), ([12, 50, 51], 3), ([12], 1), ([13], 1), ([14], 1)]
    (head, rows) = next(iter(cost.tables([{"provider": "CPU", "threads": 1, **found}])))
    assert rows[0] == ("CPU", "1", *["1000.0"] * 5)
    missing = {"provider": "OpenVINO", "threads": 2, "error": "it is not installed"}
    assert next(iter(cost.tables([missing])))[1] == [("OpenVINO", "2", *["–"] * 5)]
    assert len(head) == len(rows[0])


def test_tables_and_parts() -> None:
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert _parts("cost,agreement") == ("agreement", "cost")
    with pytest.raises(argparse.ArgumentTypeError, match="'speed' is none of"):
        _parts("cost,speed")
