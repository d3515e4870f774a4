"""What is typed after a slash."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat import slash
from app.chat.slash import SPECS, candidates, is_command, parse, plain
from runtimes.errors import RequestError


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", slash.Act("screen.new")),
        ("/NEW ", slash.Act("screen.new")),
        ("/chats", slash.Chats()),
        ("/chats boiled eggs", slash.Chats("boiled eggs")),
        ("/model", slash.Model()),
        ("/model org/name:Q4_K_M", slash.Model("org/name:Q4_K_M")),
        ("/system", slash.System()),
        ("/system Be brief.", slash.System("Be brief.")),
        ("/system One.\nTwo  three.", slash.System("One.\nTwo  three.")),
        ("/system\nOne.", slash.System("One.")),
        ("/system off", slash.System("")),
        ("/set", slash.Set()),
        ("/set temperature 0.7", slash.Set("temperature", 0.7)),
        ("/set Top-P=0.9", slash.Set("top_p", 0.9)),
        ("/set max_tokens   100", slash.Set("max_tokens", 100)),
        ("/set seed none", slash.Set("seed", None)),
        ("/set temperature default", slash.Set("temperature", None, default=True)),
        (r"/set stop END|a\|b\n", slash.Set("stop", ("END", "a|b\n"))),
        ("/attach", slash.Attach()),
        ("/attach ~/a b.txt", slash.Attach("~/a b.txt")),
        (r"/attach ~/a\ b.txt", slash.Attach("~/a b.txt")),
        ("/attach 'a b.txt'", slash.Attach("a b.txt")),
        ("/export x.md", slash.Export("x.md")),
        ("/export", slash.Export()),
        ("/copy", slash.Act("screen.copy")),
        ("/regen", slash.Act("screen.regenerate")),
        ("/retry", slash.Act("screen.regenerate")),
        ("/edit", slash.Act("screen.edit")),
        ("/continue", slash.Act("screen.continue")),
        ("/stop", slash.Stop()),
        ("/compare", slash.Compare()),
        ("/monitor", slash.Act("app.switch_mode('monitor')")),
        ("/help", slash.Act("app.help")),
        ("/?", slash.Act("app.help")),
        ("/quit", slash.Quit()),
        ("/exit", slash.Quit()),
        ("hello /new", None),
        ("", None),
        ("/ new", None),
        ("//new", None),
        ("/etc/hosts has what?", None),
        ("/* a comment */", None),
    ],
)
def test_commands(text: str, command: slash.Command | None) -> None:
    assert parse(text) == command
    assert is_command(text) == (command is not None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/", "/help lists"),
        ("/nwe", "did you mean /new"),
        ("/temprature 1", "no command"),
        ("/new chat", "nothing after"),
        ("/set temprature 1", "did you mean temperature"),
        ("/set t 1", "did you mean temperature"),
        ("/set frobnicate 1", "there are: temperature"),
        ("/set temperature", "needs a value"),
        ("/set temperature hot", "0 or more"),
        ("/set temperature -1", "0 or more"),
        ("/set temperature nan", "0 or more"),
        ("/set top_k 1.5", "0 \\(off\\) or more"),
        ("/set max_tokens 0", "1 or more"),
    ],
)
def test_mistakes_are_told(text: str, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        parse(text)


def test_two_slashes_are_one_that_is_sent() -> None:
    assert plain("//new") == "/new"
    assert plain("/etc/hosts") == "/etc/hosts"
    assert plain("a//b") == "a//b"


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert [c.text for c in candidates("/c")] == ["/chats ", "/copy", "/continue", "/compare"]
    assert len(candidates("/e")) == 2
    assert len(candidates("/")) == len(SPECS)
    assert candidates("/s")[1].shown == "/set [NAME VALUE]"
    assert [c.text for c in candidates("/set to")] == ["/set top_p ", "/set top_k "]
    assert candidates("/set top_p 0") == []
    assert [c.text for c in candidates("/attach no")] == ["/attach notes.txt"]
    assert [c.text for c in candidates("/model B", ["org/abc", "x"])] == ["/model org/abc"]
    assert candidates("hello") == candidates("//e") == candidates("/etc/ho") == []
    assert candidates("/system a\nb") == []
    for spec in SPECS:  # every command is found by its beginning, and what is offered parses
        assert any(c.shown.split()[0] == f"/{spec.name}" for c in candidates(f"/{spec.name[:2]}"))
        assert parse(f"/{spec.name}") is not None
