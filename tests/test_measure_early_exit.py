"""Tests of scripts/measure_early_exit.py: rounds on a table, ranks, and shares of a small model."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export import draft_file, gguf_file, reference
from export.__main__ import main
from runtime.manifest import Manifest
from scripts.draft.texts import Written
from scripts.early_exit import cost, likeliest, shares
from scripts.early_exit.rounds import Rounds, head_of, measure, ranks_without, rounds_of
from scripts.early_exit.shares import hit_shares
from tests.drafts import tiny_draft
from tests.graphs import TEXT, tiny_model

HEAD = np.array([2, 3, 5, 8])


def written(tokens: list[int], start: int = 1) -> Written:
    return Written("qa", start, np.array(tokens, np.int64), np.empty(0, np.int64))


def test_rounds_follow_the_walk_of_the_verifier() -> None:
    # Guesses whatever the text: 2 and 3 are drafted, 5 is the guess after both, 8 the runner-up.
    rows = np.array([[9, 1, 0, 2], [1, 9, 0, 2], [1, 0, 9, 2]], np.float32)
    asked: list[int] = []

    def guess(text: np.ndarray) -> np.ndarray:
        asked.append(len(text))
        return rows

    #                   prompt, first, | refused at once, | 2 stands, | both stand, | cut short
    text = written([7, 2, 8, 2, 5, 2, 3, 8, 2, 3])
    ended = rounds_of(text, HEAD, guess)
    assert asked == [2, 3, 5, 8]
    assert ended.accepted.tolist() == [0, 1, 2]
    assert ended.places.tolist() == [2, 4, 7]
    assert ended.refused.tolist() == [2, 3, -1]
    # 8 is first when 2 is refused; 5 follows 8 and 2 when 3 is; 8 follows 5.
    assert ended.ranks.tolist() == [0, 2, 1]


@pytest.mark.parametrize("tokens", [[7], [7, 2]])
def test_a_text_of_one_token_has_no_rounds(tokens: list[int]) -> None:
    ended = rounds_of(written(tokens), HEAD, lambda text: pytest.fail(f"asked after {text}"))
    assert [len(part) for part in dataclasses.astuple(ended)] == [0, 0, 0, 0]


def test_a_refused_token_is_no_runner_up() -> None:
    logits = np.array([[4, 3, 2, 1]] * 5, np.float32)
    wanted = np.array([8, 8, 2, 3, 7])
    refused = np.array([2, -1, 3, 7, 2])
    assert ranks_without(logits, HEAD, wanted, refused).tolist() == [2, 3, 0, 1, 3]


def test_a_head_is_about_real_tokens_only() -> None:
    assert head_of(HEAD, columns=4, vocabulary=6).tolist() == [2, 3, 5]
    assert head_of(None, columns=5, vocabulary=3).tolist() == [0, 1, 2]


def test_a_hit_is_named_by_either() -> None:
    found = hit_shares(np.array([0, 1, 9, 9]), np.array([5, 0, 1, 99]))
    assert (found["draft 1"], found["exit 1"], found["both 1"]) == (0.25, 0.25, 0.5)
    assert (found["draft 2"], found["exit 2"], found["both 2"]) == (0.5, 0.5, 0.75)
    assert (found["draft 8"], found["draft 16"], found["both 8"]) == (0.5, 1.0, 0.75)


def test_an_exit_after_all_layers_is_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "ROWS", 7)
    monkeypatch.setattr(shares, "TOGETHER", 2)
    model = tiny_model(tmp_path)
    size = model.geometry.hidden
    texts = []
    for start in (3, 9, 20):
        tokens = TEXT[:start].tolist()
        for _ in range(10):
            tokens.append(int(reference.logits(model, tokens)[-1].argmax()))
        texts.append(written(tokens, start))
    head = np.arange(0, model.geometry.vocabulary, 2)
    nothing = Rounds(*(np.empty(0, np.int64) for _ in range(4)))
    # Of the last text: its second token replaced another, which the model likes less anyhow.
    one = np.array([21])
    last = Rounds(np.array([0]), one, np.array([int(texts[2].tokens[21]) ^ 1]), np.array([4]))
    said: list[str] = []
    found = shares.measure(
        model,
        {1: np.eye(size, dtype=np.float16)},
        (1, 2),
        texts,
        head=head,
        vocabulary=model.geometry.vocabulary,
        rounds=[nothing, nothing, last],
        say=said.append,
    )
    first, through_lens, whole = found["exits"]
    assert [(of["layer"], of["lens"]) for of in found["exits"]] == [
        (1, False),
        (1, True),
        (2, False),
    ]
    for part in ("whole_head", "short_head", "hits"):
        assert first[part] == through_lens[part], "the lens changes nothing"
    assert whole["whole_head"]["overall"]["1"] == 1.0
    assert first["whole_head"]["overall"]["1"] < 1.0
    listed = np.isin(np.concatenate([text.tokens[text.start :] for text in texts]), head)
    assert whole["short_head"]["qa"]["1"] == listed.mean() < 1.0
    assert found["rounds"]["qa"] == {"rounds": 1, "accepted": [1.0]}
    assert whole["hits"]["qa"]["draft 4"] == 0.0
    assert whole["hits"]["qa"]["both 1"] == float(np.isin(texts[2].tokens[21], head))
    assert said == ["exits: 2 of 3 texts", "exits: 3 of 3 texts"]
    (names, rows), (hits, _) = shares.tables(found, "qa")
    assert names[0] == hits[0] == "after layers"
    assert [cells[0] for cells in rows] == ["1", "1, lens", "2"]


def test_every_way_to_call_is_timed(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "LENGTH", 20)
    command = ["gguf", str(tiny_gguf), "--out", str(tmp_path / "b"), "--early-exit-layer", "1"]
    assert main([*command, "--graphs", "target/fused-int8", "--draft", "none"]) == 0
    said: list[str] = []
    manifest = Manifest.load(tmp_path / "b")
    found = cost.measure(manifest, threads=[1], repeats=2, say=said.append)
    assert [(of["threads"], of["rows"]) for of in found] == [(1, rows) for rows in cost.ROWS]
    assert all(value > 0 for of in found for value in of.values())
    names, rows = cost.table(found)
    assert [len(cells) for cells in rows] == [len(names)] * len(cost.ROWS)
    assert len(said) == len(cost.ROWS)


DRAFT = [{5: 0.6, 6: 0.3}, {7: 0.5, 8: 0.4}, {9: 0.7, 1: 0.2}]
EXIT = [{6: 0.8, 5: 0.1}, {8: 0.9, 3: 0.1}, {2: 0.5, 9: 0.4}]


def test_hypotheses_come_by_how_likely_they_are() -> None:
    # 5 and 7 are drafted: by the draft 6 comes first, then what follows both.
    assert likeliest.hypotheses(DRAFT, [5, 7]) == [
        (0, 6),  # 0.3
        (1, 8),  # 0.6 * 0.4
        (2, 9),  # 0.6 * 0.5 * 0.7
        (2, 1),
    ]
    # The exit does not name 7 after 5: what follows both is next to impossible.
    assert likeliest.hypotheses(EXIT, [5, 7]) == [(0, 6), (1, 8), (1, 3), (2, 2), (2, 9)]


def test_both_sources_count_alike() -> None:
    draft, exits, mean = likeliest.ways(likeliest.Expected([5, 7], DRAFT, EXIT))
    assert (draft, exits) == (DRAFT, EXIT)
    assert mean[0] == pytest.approx({5: 0.35, 6: 0.55})
    assert mean[1] == pytest.approx({7: 0.25, 8: 0.65, 3: 0.05})


def test_outcomes_are_looked_for_among_the_hypotheses_of_real_graphs(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    draft, target = tmp_path / "draft.safetensors", gguf_file.read(tiny_gguf).model
    layers = range(target.geometry.layers)
    draft_file.save(draft, tiny_draft(target, layers, heads=200), target, layers)
    command = ["gguf", str(tiny_gguf), "--out", str(tmp_path / "b"), "--draft", str(draft)]
    graphs = "target/fused-int8,draft/fused-int8"
    assert main([*command, "--graphs", graphs, "--early-exit-layer", "1"]) == 0
    manifest = Manifest.load(tmp_path / "b")
    vocabulary = target.geometry.vocabulary
    tokens = TEXT[:20].tolist()
    for _ in range(12):
        tokens.append(int(reference.logits(target, tokens)[-1].argmax()))
    settings: dict[str, Any] = {"vocabulary": vocabulary, "threads": 1, "say": lambda _line: None}
    texts = [written(tokens, 20)]
    _, ended = measure(manifest, texts, **settings)
    found = likeliest.measure(manifest, texts, ended, **settings)
    assert list(found) == list(likeliest.NAMES)
    for of in found.values():
        shares_of = list(of["qa"].values())
        assert shares_of == sorted(shares_of), "more hypotheses hit no less"
        assert of["qa"] == of["overall"]
    # A place's own runner-ups are among the 16 likeliest where the round ended at the first place.
    at_once = (ended[0].accepted == 0) & (ended[0].ranks == 0)
    assert found["draft"]["qa"]["16"] >= at_once.mean()
    names, rows = likeliest.table(found, "qa")
    assert [len(cells) for cells in rows] == [len(names)] * 3
