import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime.conversation import Conversation, Generation, SavedChatError, load, save
from runtime.sampling import Sampling

GENERATION = Generation(Sampling(temperature=0.5, top_k=3, seed=2**64 - 1), 17, ("\n", "END"))
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Schöne Grüße 😀\n\u2028"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "<|im_end|>"},
]


def roles(conversation: Conversation) -> str:
    return "".join(message["role"][0] for message in conversation.messages)


def test_questions_and_answers_take_turns() -> None:
    chat = Conversation()
    assert chat.system is None
    assert not chat.reopen()
    chat.ask("a")
    chat.ask("b")  # the first one got no answer
    assert chat.messages == [{"role": "user", "content": "b"}]
    chat.answer("c")
    chat.ask("d")
    assert roles(chat) == "uau"
    assert chat.reopen()
    assert roles(chat) == "uau"
    chat.answer("e")
    assert chat.reopen()
    assert roles(chat) == "uau"
    chat.reset()
    assert roles(chat) == ""


def test_the_system_message_stays_first_and_survives_a_reset() -> None:
    chat = Conversation()
    chat.ask("a")
    chat.answer("b")
    chat.set_system("one")
    chat.set_system("two")
    assert roles(chat) == "sua"
    assert chat.system == "two"
    chat.reset()
    assert roles(chat) == "s"
    assert not chat.reopen()
    assert roles(chat) == "s"


def test_a_saved_chat_comes_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "my chat.json"
    save(path, MESSAGES, GENERATION, {"model": "m", "folder": tmp_path})
    assert load(path) == (MESSAGES, GENERATION)
    save(path, MESSAGES[:2], GENERATION, {})
    assert load(path) == (MESSAGES[:2], GENERATION)
    assert [entry.name for entry in tmp_path.iterdir()] == ["my chat.json"]


def test_a_file_that_is_no_chat_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(SavedChatError, match="choose another name"):
        save(path, MESSAGES, GENERATION, {})
    assert path.read_text() == "precious"


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat.json"
    save(path, MESSAGES, GENERATION, {})

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SavedChatError, match="No space left"):
        save(path, [], GENERATION, {})
    assert load(path) == (MESSAGES, GENERATION)
    assert [entry.name for entry in tmp_path.iterdir()] == ["chat.json"]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SavedChatError, match="cannot be written"):
        save(tmp_path / "absent" / "chat.json", MESSAGES, GENERATION, {})
    with pytest.raises(SavedChatError, match="There is no file"):
        load(tmp_path / "absent.json")
    with pytest.raises(SavedChatError, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"[]", b"{}"])
def test_other_files_are_no_saved_chats(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(SavedChatError, match="not a saved chat"):
        load(tmp_path / "f")


@pytest.mark.parametrize(
    ("where", "value", "sentence"),
    [
        (["version"], 2, "has version 2"),
        (["messages"], {}, "messages must be a list"),
        (["messages", 0], "hi", "message 1 must be an object"),
        (["messages", 0, "role"], "tool", "message 1 has the role 'tool'"),
        (["messages", 0, "role"], ["user"], "message 1 has the role"),
        (["messages", 0, "role"], "assistant", "message 1 has the role 'assistant'"),
        (["messages", 1, "role"], "system", "message 2 has the role 'system'"),
        (["messages", 2, "role"], "user", "message 3 has the role 'user'"),
        (["messages", 1, "content"], None, "message 2's content must be a text"),
        (["messages", 1, "content"], "\ud83d", "half a character"),
        (["messages", 1, "name"], "x", "message 2 must have a role and a content"),
        (["settings"], None, "settings must be an object"),
        (["settings", "generation", "max_new_tokens"], -1, "0 or more"),
        (["settings", "generation", "max_new_tokens"], True, "a whole number"),
        (["settings", "generation", "stop"], "END", "stop must be a list"),
        (["settings", "generation", "stop"], [""], "a stop text is empty"),
        (["settings", "generation", "sampling", "top_p"], 2, "top_p must be"),
        (["settings", "generation", "sampling", "top_k"], 1.5, "top_k is 1.5"),
        (["settings", "generation", "sampling", "seed"], "7", "seed is '7'"),
        (["settings", "generation", "sampling", "temperature"], True, "temperature is True"),
        (["settings", "generation", "sampling", "heat"], 1, "sampling must have"),
    ],
)
def test_damage_is_named(where: list[Any], value: Any, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save(path, MESSAGES, GENERATION, {})
    data = json.loads(path.read_text(encoding="utf-8"))
    place = data
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SavedChatError) as caught:
        load(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
