"""What is typed after a slash."""

from pathlib import Path

import pytest

from app.chat.slash import SPECS, candidates, is_command, parse, plain
from runtimes.errors import RequestError


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", "screen.new"),
        ("/chats boiled eggs", "screen.chats('boiled eggs')"),
        ("/model org/name:Q4_K_M", "screen.models('org/name:Q4_K_M')"),
        ("/system Be brief.", "screen.system('Be brief.')"),
        ("/system One.\nTwo  three.", "screen.system('One.\\nTwo  three.')"),
        ("/system off", "screen.system('')"),
        ("/set temperature 0.7", "screen.sampling('temperature', 0.7)"),
        ("/set Top-P=0.9", "screen.sampling('top_p', 0.9)"),
        ("/set max_tokens   100", "screen.sampling('max_tokens', 100)"),
        ("/set seed none", "screen.sampling('seed', None)"),
        ("/set temperature default", "screen.sampling('temperature')"),
        (r"/set stop END|a\|b\n", "screen.sampling('stop', ('END', 'a|b\\n'))"),
        ("/schema a.json", "screen.form('json_schema', 'a.json')"),
        ("/choice yes | no", "screen.form('choices', 'yes | no')"),
        ("/attach ~/a b.txt", "screen.attach('~/a b.txt')"),
        (r"/attach ~/a\ b.txt", "screen.attach('~/a b.txt')"),
        ("/attach 'a b.txt'", "screen.attach('a b.txt')"),
        ("/retry", "screen.regenerate"),
        ("/monitor", "app.switch_mode('monitor')"),
        ("/?", "app.help"),
        ("/exit", "screen.quit"),
        ("hello /new", None),
        ("", None),
        ("/ new", None),
        ("//new", None),
        ("/etc/hosts has what?", None),
        ("/* a comment */", None),
    ],
)
def test_commands(text: str, command: str | None):
    assert parse(text) == command
    assert is_command(text) == (command is not None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/", "/help lists"),
        ("/nwe", "did you mean /new"),
        ("/new chat", "nothing after"),
        ("/set temprature 1", "did you mean temperature"),
        ("/set t 1", "did you mean temperature"),
        ("/set frobnicate 1", "there are: temperature"),
        ("/set temperature", "needs a value"),
        ("/set temperature hot", "0 or more"),
        ("/set temperature nan", "0 or more"),
        ("/set top_k 1.5", "0 \\(off\\) or more"),
    ],
)
def test_mistakes_are_told(text: str, why: str):
    with pytest.raises(RequestError, match=why):
        parse(text)


def test_two_slashes_are_one_that_is_sent():
    assert plain("//new") == "/new"
    assert plain("/etc/hosts") == "/etc/hosts"
    assert plain("a//b") == "a//b"


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    begun = ["/chats ", "/choice ", "/copy", "/continue", "/compare"]
    assert [c.text for c in candidates("/c")] == begun
    assert len(candidates("/e")) == 2
    assert len(candidates("/")) == len(SPECS)
    assert candidates("/se")[0].shown == "/set [NAME VALUE]"
    assert [c.text for c in candidates("/set to")] == ["/set top_p ", "/set top_k "]
    assert candidates("/set top_p 0") == []
    for name in ("attach", "schema"):
        assert [c.text for c in candidates(f"/{name} no")] == [f"/{name} notes.txt"]
    assert [c.text for c in candidates("/adapter ", (), ["poet", "law"])] == [
        "/adapter poet",
        "/adapter law",
        "/adapter off",
    ]
    assert candidates("/adapter ") == []
    assert [c.text for c in candidates("/model B", ["org/abc", "x"])] == ["/model org/abc"]
    assert candidates("hello") == candidates("//e") == candidates("/etc/ho") == []
    assert candidates("/system a\nb") == []
    for spec in SPECS:  # every command is found by its beginning, and what is offered parses
        assert any(c.shown.split()[0] == f"/{spec.name}" for c in candidates(f"/{spec.name[:2]}"))
        assert parse(f"/{spec.name}") is not None
