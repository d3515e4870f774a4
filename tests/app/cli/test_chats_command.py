"""`ingot chats` over a real store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.chat.store.records import State
from app.chat.store.store import ChatStore, default_path
from app.cli import main as cli
from tests.app.chat.store.long_chats import FIGURES

Run = Callable[..., tuple[str, str]]


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | int, code: int = 0) -> Any:
        assert cli.main(["chats", *map(str, arguments)]) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def chats() -> list[int]:
    """One with two branches, one with something that would steer a terminal in its title."""
    with ChatStore.open() as store:
        first = store.new_chat(system="Be short.")
        asked = store.add_message(first.id, None, "Why is the sky blue?")
        for text in ("Because of Rayleigh.", "It scatters **light**."):
            answer = store.begin_answer(first.id, asked.id, model="pebble · q8_0")
            store.end_answer(
                replace(answer, text=text, token_ids=(1,), state=State.DONE, figures=FIGURES)
            )
        second = store.new_chat(title="Red \x1b[31m title")
        store.add_message(second.id, None, "blue\x1b[0m too")
        return [first.id, second.id]


def test_list(run: Run, request: pytest.FixtureRequest) -> None:
    out, err = run()
    assert out == ""
    assert "no chats in" in err
    assert json.loads(run("--json")[0])["chats"] == []
    assert "no deleted chats" in run("--deleted")[1]
    assert not default_path().exists()  # nothing is made
    first, second = request.getfixturevalue("chats")
    lines = run()[0].splitlines()
    assert [line.split()[0] for line in lines] == [str(second), str(first)]
    assert "Red ␛[31m title" in lines[0]
    assert lines[1].endswith("   3  Why is the sky blue?")
    assert len(run("--limit", 1)[0].splitlines()) == 1
    data = json.loads(run("--json")[0])
    assert data["file"] == str(default_path())
    assert [(one["id"], one["messages"]) for one in data["chats"]] == [(second, 1), (first, 3)]
    assert data["chats"][0]["updated"].endswith("+00:00")


def test_search_and_export(run: Run, chats: list[int]) -> None:
    out, _ = run("search", "blue")
    assert "\x1b" not in out
    assert out.count("\n") == 4
    assert "        blue␛[0m too" in out
    assert run("search", "sky", "why")[0].splitlines()[1].strip() == "Why is the sky blue?"
    (hit,) = json.loads(run("search", "rayl", "--json")[0])["hits"]
    assert [hit["snippet"][a:b] for a, b in hit["marks"]] == ["Rayl"]
    assert (hit["id"], hit["message"]) == (chats[0], 2)
    out, err = run("search", "nothing like it")
    assert (out, "no chat" in err) == ("", True)
    text = run("export", chats[0])[0]
    assert text.startswith("# Why is the sky blue?\n")
    assert "It scatters **light**." in text
    assert "Rayleigh" not in text  # of the branch that is not shown
    data = json.loads(run("export", chats[0], "--json")[0])
    assert (len(data["messages"]), data["chat"]["system"]) == (3, "Be short.")
    out, err = run("export", 99, code=2)
    assert (out, "there is no chat 99" in err) == ("", True)


def test_delete_and_restore(run: Run, chats: list[int]) -> None:
    assert "no chat 99" in run("rm", chats[0], 99, code=2)[1]
    assert len(run()[0].splitlines()) == 2  # all of them or none
    assert f"ingot chats restore {chats[0]}" in run("rm", chats[0])[1]
    assert len(run()[0].splitlines()) == 1
    assert run("--deleted")[0].split()[0] == str(chats[0])
    assert run("search", "sky")[0] == ""
    run("restore", chats[0])
    assert len(run("search", "sky")[0].splitlines()) == 2


def test_repair(run: Run, chats: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.chat.store.database._BUSY_S", 0.1)
    path = default_path()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("UPDATE chats SET raw = 0")
    before = sorted(path.parent.iterdir())
    assert "held by another program" in run("repair", "--yes", code=2)[1]
    assert sorted(path.parent.iterdir()) == before
    holder.execute("COMMIT")
    holder.close()
    assert "is whole: 2 chats with 4 messages" in run("repair")[1]
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * 4096 + data[8192:])
    assert "only with --yes" in run("repair", code=2)[1]
    assert path.read_bytes()[4096:4100] == b"\xff" * 4
    said = run("repair", "--yes")[1]
    assert "the damaged file is" in said
    assert said.index("is renamed,") < said.index("saved")  # told before it is done
    assert "is whole" in run("repair")[1]
    assert len([name for name in path.parent.iterdir() if "damaged" in name.name]) == 1
