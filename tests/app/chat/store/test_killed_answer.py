"""kill -9 while a real model answers: what one could read a second before is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from app.chat.store.records import Role, State
from app.chat.store.store import ChatStore

ROOT = Path(__file__).resolve().parents[4]


def test_an_answer_survives_the_kill_of_its_program(
    path: Path, tmp_path: Path, endless_gguf: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.app.chat.store.asker", path, endless_gguf],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "INGOT_HOME": str(tmp_path / "home")},
    )
    try:
        assert process.stdout is not None
        seen: list[dict[str, Any]] = []
        for line in process.stdout:
            seen.append(json.loads(line))
            mine = [one for one in seen if one["id"] == seen[-1]["id"] and one["text"]]
            if mine and mine[-1]["at"] - mine[0]["at"] > 1.3:
                break
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        left, _ = process.communicate()
    seen += [json.loads(line) for line in left.splitlines() if line.endswith("}")]

    with ChatStore.open(path) as store:
        (chat,) = store.chats()
        messages = store.messages(chat.id)
        answer = messages[-1]
        assert messages[-2].role is Role.USER
        assert answer.parent == messages[-2].id
        assert answer.state is State.LOST
        shown = [one for one in seen if one["id"] == answer.id]
        a_second_before = [one["text"] for one in shown if one["at"] < shown[-1]["at"] - 1.0]
        assert a_second_before[-1]
        assert answer.text.startswith(a_second_before[-1])
        # Of what was saved last, the kill may have come before it was said.
        last = shown[-1]["text"]
        assert last.startswith(answer.text) or answer.text.startswith(last)
        assert answer.figures is not None
        assert answer.figures.completion_tokens == len(answer.token_ids) > 0
        assert answer.figures.ttft_s > 0
        assert answer.model
        assert answer.file == str(endless_gguf)
        assert store.search("fox")[0].chat == chat
    # The engine's process does not outlive its program.
    assert children
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
