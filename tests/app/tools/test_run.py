"""`ingot run --tools`: calls that are made, refused or asked for, and what stands on stderr."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
SERVER = str(Path(__file__).with_name("server.py"))
ONE = ["--threads", "1", "--max-tokens", "60", "--require-tool"]
ASKED = "What time is it?"


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with servers that have the tool `zone` alone, and one that does not start."""
    lines = [
        f'[mcp.servers.{name}]\ncommand = "{sys.executable}"\nargs = ["{SERVER}", "{how}"]\n'
        for name, how in (("clock", "zone"), ("broken", "broken"))
    ]
    (tmp_path / "config.toml").write_text("\n".join(lines))
    monkeypatch.setenv("INGOT_CONFIG", str(tmp_path / "config.toml"))


def test_a_call_is_made_refused_or_cut(command: Any, gguf_file: Path, servers: None) -> None:
    asked = ("run", gguf_file, ASKED, "--tools", "clock", *ONE)
    for allowed in ("zone", "clock"):
        done = command(*asked, "--allow-tools", allowed)
        assert done.returncode == 0, done.stderr
        assert '→ zone(name="UTC")' in done.stderr
        assert "6 characters: +00:00" in done.stderr
        assert "zone" not in done.stdout
        assert done.stdout.strip()
    done = command(*asked, "--json", "--quiet")
    report = json.loads(done.stdout)
    [call] = report["tool_calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("zone", {"name": "UTC"})
    assert (call["state"], call["result"]) == ("refused", "the user did not allow it")
    assert report["text"]
    assert "--allow-tools zone allows it" in done.stderr
    done = command(*asked, "--max-tokens", "6", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert [one["state"] for one in report["tool_calls"]] == ["cut"]
    assert report["text"] == ""
    assert "ended within a call" in done.stderr


def test_what_cannot_be_called_is_said_before_a_model_is_loaded(
    command: Any, gguf_file: Path, servers: None
) -> None:
    for words, code, said in (
        (["--tools", "clok"], 2, "no tool server 'clok'; configured: clock, broken"),
        (["--tools", "broken"], 4, "broken does not start: no module named luck"),
        (["--tools", "clock", "--allow-tools", "x"], 2, "there is no tool 'x'; there are all,"),
        (["--allow-tools", "x"], 2, "go with --tools"),
        (["--tools", "clock", "--raw"], 2, "--tools needs the chat template"),
        (["--tools", "clock", "--regex", "x"], 2, "--tools goes with --json-schema"),
    ):
        done = command("run", gguf_file, ASKED, *words)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert done.stdout == ""


def test_a_terminal_asks(ingot: Any, gguf_file: Path, servers: None) -> None:
    ours, theirs = pty.openpty()
    ends = {"stdin": theirs, "stderr": theirs}
    process = ingot.start("run", gguf_file, ASKED, "--tools", "clock", *ONE, **ends)
    os.close(theirs)
    seen = b""
    while b"always or no" not in seen:
        seen += os.read(ours, 1000)
    assert b'clock: zone(name="UTC")' in seen
    os.write(ours, b"y\n")
    while b"on llamacpp" not in seen:
        seen += os.read(ours, 1000)
    assert b"+00:00" in seen
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert not out.startswith((b" ", b"Call"))  # nothing of the question
    os.close(ours)
