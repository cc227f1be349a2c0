"""Ten plain questions, asked of the reference model through the chat's own path."""

from pathlib import Path

import pytest

from runtime import Sampling, open_session

pytestmark = pytest.mark.real_model

README = Path(__file__).resolve().parent.parent / "README.md"
EXPECTED = {
    "What is the capital of France?": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Germany?": "Berlin",
    "What is the capital of Egypt?": "Cairo",
    "How many days are in a week?": "7",
    "What is 2 + 2?": "4",
    "What is the chemical symbol for water?": "H2O",
    "What is the largest ocean on Earth?": "Pacific",
    "What is the currency of the United States?": "Dollar",
    "What is the hottest planet in the solar system?": "Venus",
}


def printed() -> dict[str, str]:
    """The README's questions and answers."""
    rows = [line.split("|") for line in README.read_text(encoding="utf-8").splitlines()]
    cells = [[cell.strip() for cell in row[1:-1]] for row in rows if len(row) == 4]
    return {question: answer for question, answer in cells if question in EXPECTED}


def test_the_readme_prints_an_answer_to_every_question() -> None:
    answers = printed()
    assert list(answers) == list(EXPECTED)
    assert all(word in answers[question] for question, word in EXPECTED.items())


def test_the_model_gives_the_expected_answers(smollm: Path) -> None:
    with open_session(smollm, strategy="mirror") as session:
        for question, word in EXPECTED.items():
            answer = session.generate(
                [{"role": "user", "content": question}], Sampling(), max_new_tokens=80
            )
            assert word in "".join(answer)
            assert answer.finish_reason == "eos"
