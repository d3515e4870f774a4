"""Commands on a terminal, given names, prompts and answers that hold escape sequences: nothing of
them reaches it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.chat.conversation import Conversation
from app.chat.store.store import ChatStore, default_path
from app.cli import main as cli
from app.console import messages
from tests.app.tui.terminal import Terminal
from tests.hostile import harmful
from tests.quantize.hub.fakehub import FakeHub
from tests.runtimes.models.sparse_gguf import write_sparse_gguf

WORST = "PWNED[red]\x1b]2;PWNED\x07\x1b[2J\x1b[4;95m\x9b31m\u202e\u2028\x08\x7f"
# What Rich writes itself, for colours and bars; the style in the text above is none of its own.
_RICH = re.compile("\x1b\\[(?:\\?25[lh]|2K|1A|(?!4;95m)[0-9;]*m)|\r")
_ONE = ("--threads", "1")

Run = Callable[..., str]


@pytest.fixture
def model(pebble_built: Path, tmp_path: Path) -> Path:
    """A model as somebody else may have called it."""
    folder = tmp_path / f"models {WORST}"
    folder.mkdir()
    file = folder / f"{WORST}.gguf"
    os.symlink(next(pebble_built.glob("*q8_0*.gguf")), file)
    return file


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs `ingot` as on a terminal, and returns what it wrote there. All of it is
    its own: what the processes write that it starts comes through its log."""
    for name, value in (("COLUMNS", "2000"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)

    def command(*arguments: str | Path, tried: bool = True) -> str:
        screen = Screen()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", None)
            patch.setattr(sys, "stdout", screen)
            patch.setattr(sys, "stderr", screen)
            messages.cache_clear()
            cli.main([*map(str, arguments)])
        messages.cache_clear()
        return checked(screen.getvalue(), tried)

    return command


def checked(text: str, tried: bool = True) -> str:
    assert not harmful(_RICH.sub("", text)), ascii(text)
    if tried:
        assert "PWNED" in text, text
    return text


def test_an_answer(run: Run, command: Any, pebble_built: Path, home: Path) -> None:
    file = next(pebble_built.glob("*q8_0*.gguf"))
    asked = ("run", file, "Hello", "--regex", r"\x1b\]2;PWNED\x07\x9b31m\r", *_ONE)
    real = Terminal(*asked, env={"INGOT_HOME": str(home), "COLUMNS": "2000"})
    try:
        real.ended()
    finally:
        real.close()
    assert "\u241b]2;PWNED\u2407\\x9b31m\u240d" in checked(real.written.decode())
    text = run(*asked, "--json")
    assert json.loads(text[text.index("{") : text.rindex("}") + 1])["text"].startswith("\x1b]2;PW")
    # A pipe gets data as it is.
    assert command(*asked, "--quiet").stdout.startswith("\x1b]2;PWNED\x07\x9b31m\r")


def test_names_in_figures_and_errors(run: Run, model: Path, tmp_path: Path) -> None:
    run("run", model, "Hello", "--max-tokens", "4", *_ONE)
    run("run", tmp_path / f"none {WORST}.gguf", "Hello")
    run("-v", "run", tmp_path / f"none {WORST}.gguf", "Hello")
    run("run", model, "Hello", "--recipe", WORST)
    run("run", model, "Hello", "--adapter", tmp_path / WORST)
    run("run", model, "Hello", "--system", WORST, "--device", WORST)
    run("run", model, "Hello", f"--{WORST}")
    run("batch", WORST, tmp_path / WORST, "--model", model)
    run(WORST)
    run("chats", "export", WORST, tried=False)
    run("plan", model, "--task", WORST, tried=False)
    run("config", "get", WORST)
    run("config", "set", "chat.model", WORST)
    run("config")
    run("config", "--json")


def test_rows_on_a_terminal(run: Run, model: Path, tmp_path: Path) -> None:
    rows = tmp_path / f"rows {WORST}.jsonl"
    given = [{"id": WORST, "prompt": WORST}, {"id": "b", "prompt": 3}, {"id": WORST, "prompt": "a"}]
    rows.write_text("".join(json.dumps(row) + "\n" for row in given) + f"{WORST}\n")
    alike = ("--model", model, "--max-tokens", "4", "--regex", r"\x1b\]2;PWNED", *_ONE)
    run("batch", rows, "-", *alike)
    run("-v", "batch", rows, tmp_path / f"out {WORST}.jsonl", *alike)
    run("batch", rows, tmp_path / f"out {WORST}.jsonl", *alike, "--json")
    run("batch", rows, *alike, "--test")
    run("batch", rows, "-", *alike, "--dry-run")
    run("batch", "status", tmp_path / f"out {WORST}.jsonl")
    run("batch", "status", tmp_path / f"out {WORST}.jsonl", "--json")


def test_chats(run: Run, home: Path) -> None:
    with ChatStore.open(default_path()) as store:
        conversation = Conversation.new(store)
        conversation.say(f"blue {WORST}")
        store.update_chat(conversation.chat.id, title=WORST, system=WORST)
        store.new_chat()
    for more in ((), ("--json",)):
        run("chats", *more)
        run("chats", "search", "blue", *more)
        run("chats", "export", "1", *more)
    run("chats", "rm", "1")
    run("chats", "restore", "1")


def test_quantize(run: Run, pebble: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pebble, tmp_path / f"folder {WORST}")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [WORST]}))
    run("quantize", folder, "--recipe", "q8_0", "--no-measure", "-v")
    run("quantize", tmp_path / f"none {WORST}")
    run("quantize", pebble, "--recipe", WORST, tried=False)  # in small letters
    run("quantize", pebble, "--override", WORST)


def test_an_architecture(run: Run, tmp_path: Path) -> None:
    shape = {"hidden": 32, "feed_forward": 32, "layers": 1, "heads": 1, "kv_heads": 1, "vocab": 32}
    file = write_sparse_gguf(tmp_path / "odd.gguf", WORST, head_dim=32, **shape)
    run("-v", "run", file, "Hello")


def test_a_hub(run: Run, hub: FakeHub) -> None:
    hub.add("org/names", {f"{WORST}-{kind}.gguf": b"GGUF" * 50 for kind in ("Q4_K_M", "Q8_0")})
    hub.add("org/one", {"[/red]PWNED-Q4_K_M.gguf": b"GGUF" * 50})
    for repo in ("org/names", "org/one", f"org/{WORST}"):
        run("pull", repo)
    run("models", tried=False)  # what cannot be a name is refused before
    run("rm", WORST)
