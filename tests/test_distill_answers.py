"""The target's answers are those it gives alone, file by file, the same for the same seed."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest

from export.distill import answers, corpus
from export.distill.answers import GROUP, TEMPERATURES, Wanted, Writer, groups, write
from export.distill.corpus import Record
from export.distill.prompts import Prompt
from runtime import Sampling, Session, open_session
from runtime.errors import BuildError, BundleError
from runtime.manifest import Manifest
from runtime.text import Text
from tests.table import wait_until

START, END = 1, 2  # <|im_start|>, <|im_end|>
CONTEXT, TOKENS = 120, 12
ONE = [Prompt("x-one", (text,)) for text in ("the tale", "a", "12 12 then", "and on", "or an in")]
TWO = Prompt("x-two", ("the", "and then"))


@pytest.fixture(scope="module")
def writer(tiny_bundle: Path) -> Writer:
    return Writer(tiny_bundle, "int8", CONTEXT, TOKENS, 1)


@pytest.fixture(scope="module")
def session(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    cache = tmp_path_factory.mktemp("cache")
    with open_session(tiny_bundle, cache_dir=cache, draft="none", threads=1) as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers-0000.npz"


def written(writer: Writer, wanted: Wanted) -> list[Record]:
    path, tokens = writer.write(wanted)
    assert path == wanted.path
    records = list(corpus.load([path]))
    assert tokens == sum(len(each.tokens) - each.start for each in records)
    return records


def answered(session: Session, messages: list[dict[str, str]], sampling: Sampling) -> list[int]:
    """What the session answers alone, with the end token where it ends; it is a message then."""
    answer = session.generate(messages, sampling, max_new_tokens=TOKENS)
    messages.append({"role": "assistant", "content": "".join(answer)})
    return answer.tokens + [END] * (answer.finish_reason == "eos")


@pytest.mark.parametrize("temperatures", [(0.0,), TEMPERATURES])
def test_answers_are_those_of_a_session_of_its_own(
    writer: Writer, session: Session, tiny_bundle: Path, path: Path, temperatures: tuple[float, ...]
) -> None:
    text = Text.load(tiny_bundle)
    prompts = [*ONE, TWO]
    records = written(writer, Wanted(path, prompts, 0, 7, temperatures))
    assert [each.template for each in records] == ["x-one"] * 5 + ["x-two"]
    for place, (prompt, record) in enumerate(zip(prompts, records, strict=True)):
        temperature = temperatures[place % len(temperatures)]
        assert record.temperature == pytest.approx(temperature)
        sampling = Sampling(temperature=temperature, seed=7 * GROUP + place)
        messages: list[dict[str, str]] = []
        for turn in prompt.turns:
            messages.append({"role": "user", "content": turn})
            asked = text.encode_chat(messages)
            answer = answered(session, messages, sampling)
        assert record.tokens[: record.start].tolist() == asked
        assert record.tokens[record.start :].tolist() == answer


def test_the_target_begins_conversations_itself(tiny_bundle: Path, path: Path) -> None:
    writer = Writer(tiny_bundle, "int8", 250, TOKENS, 1)
    asked = Text.load(tiny_bundle).encode_chat([{"role": "user", "content": "a"}])
    opening, closing = asked[: asked.index(END) - 1], asked[asked.index(END) :]
    records = written(writer, Wanted(path, [], 7, 0))
    assert 0 < len(records) <= 7
    assert {each.template for each in records} == {answers.WRITTEN_BY_TARGET}
    turns = []
    for record in records:
        prompt = record.tokens[: record.start].tolist()
        assert prompt[: len(opening)] == opening
        assert prompt[len(opening)] != END
        assert prompt[-len(closing) :] == closing
        turns.append(prompt.count(START) / 2)  # a user's and an assistant's
    assert set(turns) == {1, 2}
    assert turns.count(2) <= 3


def test_the_same_seed_writes_the_same_file(writer: Writer, tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate((1, 1, 2)):
        wanted = Wanted(tmp_path / f"{number}.npz", ONE, 3, seed)
        files.append(writer.write(wanted)[0].read_bytes())
    assert files[0] == files[1] != files[2]


def test_what_does_not_fit_the_context_ends_before(writer: Writer, path: Path) -> None:
    long = "x" * CONTEXT
    prompts = [Prompt("long", (long,)), Prompt("later", ("the", long)), Prompt("empty", ("",))]
    (record,) = written(writer, Wanted(path, prompts, 0, 0))
    assert record.template == "later"
    assert len(record.tokens) < CONTEXT
    assert written(writer, Wanted(path, prompts[:1], 0, 0)) == []


def test_a_talk_that_has_no_room_for_another_turn_ends(tiny_bundle: Path, path: Path) -> None:
    for context, most in ((20, 0), (60, 61), (999, 256)):
        records = written(Writer(tiny_bundle, "int8", context, 199, 1), Wanted(path, [], 9, 0))
        assert max((len(record.tokens) for record in records), default=0) == most


def test_an_answer_ends_with_the_token_that_the_template_ends_a_turn_by(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    other = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, other)
    manifest = Manifest.load(other)
    both = dataclasses.replace(manifest.target, end_tokens=[0, END])
    dataclasses.replace(manifest, target=both).save(other)
    prompts = [Prompt("x", (f"the tale {number}",)) for number in range(24)]
    writer = Writer(other, "fp32", CONTEXT, 60, 1)
    records = written(writer, Wanted(tmp_path / "x.npz", prompts, 0, 0, (1.5,)))
    ended = [record for record in records if len(record.tokens) - record.start < 60]
    ended = [record for record in ended if len(record.tokens) < CONTEXT]
    assert ended
    assert {int(record.tokens[-1]) for record in ended} == {END}
    assert all(0 not in record.tokens for record in records)


def write_all(bundle: Path, wanted: list[Wanted], say: Callable[[str], None]) -> None:
    """What is missing of `wanted`, by a process of its own."""
    write(
        bundle,
        wanted,
        precision="int8",
        context=CONTEXT,
        max_new_tokens=TOKENS,
        workers=1,
        progress=say,
    )


def test_files_that_are_there_are_not_made_again(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    wanted = [
        Wanted(folder / f"answers-000{number}.npz", ONE[:2], number % 2, number)
        for number in range(3)
    ]
    wanted[1].path.write_bytes(b"mine")
    (folder / f"half-{wanted[2].path.name}").write_bytes(b"half")
    said: list[str] = []

    write_all(tiny_bundle, wanted, said.append)
    assert wanted[1].path.read_bytes() == b"mine"
    assert [line.partition(":")[0] for line in said] == [wanted[0].path.name, wanted[2].path.name]
    assert [line.rpartition("(")[2] for line in said] == ["2 of 3 files)", "3 of 3 files)"]
    assert len(list(corpus.load([wanted[0].path, wanted[2].path]))) == 4
    write_all(tiny_bundle, wanted, said.append)
    assert len(said) == 2
    assert len(list(folder.iterdir())) == 3


def die(wanted: Wanted) -> tuple[Path, int]:
    os._exit(len(wanted.prompts))


def test_a_bundle_that_cannot_write_and_a_process_that_ends_are_told(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(bundle: Path, precision: str) -> None:
        write(
            bundle,
            [Wanted(tmp_path / "x.npz", ONE, 0, 0)],
            precision=precision,
            context=CONTEXT,
            max_new_tokens=TOKENS,
            workers=1,
            progress=lambda _: None,
        )

    with pytest.raises(BundleError, match="no target graph in int4 for CPU"):
        make(tiny_bundle, "int4")
    manifest = Manifest.load(tiny_bundle)
    alone = {
        name: dataclasses.replace(graph, lanes={}) for name, graph in manifest.target.graphs.items()
    }
    lonely = dataclasses.replace(
        manifest, target=dataclasses.replace(manifest.target, graphs=alone)
    )
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "load", lambda _: lonely)
        with pytest.raises(BundleError, match="no int8 graph that answers many prompts at once"):
            make(tiny_bundle, "int8")
    monkeypatch.setattr(Writer, "run", die)
    with pytest.raises(BuildError, match="fewer --workers"):
        make(tiny_bundle, "int8")


def test_groups_are_of_a_size_and_talks_of_a_length_stand_together() -> None:
    prompts = [Prompt(f"x-{number}", ("a",) * (1 + number % 3)) for number in range(2 * GROUP + 5)]
    found = groups(prompts, GROUP + 1, Path("corpus"), seed=10)
    assert [(len(each.prompts), each.begun) for each in found] == [
        (GROUP, 0),
        (GROUP, 0),
        (5, 0),
        (0, GROUP),
        (0, 1),
    ]
    assert [each.path for each in found] == [
        Path("corpus") / f"answers-000{number}.npz" for number in range(5)
    ]
    assert [each.seed for each in found] == [10, 11, 12, 13, 14]
    lengths = [len(prompt.turns) for each in found for prompt in each.prompts]
    assert lengths == sorted(lengths)
    assert {prompt for each in found for prompt in each.prompts} == set(prompts)
    assert groups([], 0, Path("corpus"), seed=0) == []


def test_an_interruption_ends_the_writers_at_once(tiny_bundle: Path, tmp_path: Path) -> None:
    wanted = [Wanted(tmp_path / f"{number}.npz", [TWO], 0, number, (0.0,)) for number in range(40)]

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt):
        write_all(tiny_bundle, wanted, interrupt)
    assert 1 <= len(list(tmp_path.glob("*.npz"))) < 20
    wait_until(lambda: not active_children())


def test_a_writer_ends_with_the_program_that_began_it(tmp_path: Path) -> None:
    script = tmp_path / "begin.py"
    script.write_text(
        "import multiprocessing, threading, time\n"
        "from export.distill.answers import end_with_parent\n"
        "def write():\n"
        "    threading.Thread(target=end_with_parent, daemon=True).start()\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(120)\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.get_context('spawn').Process(target=write).start()\n"
        "    time.sleep(120)\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "writing\n"
        program.kill()
        assert program.communicate(timeout=60)[0] == ""  # the pipe is open as long as either lives
