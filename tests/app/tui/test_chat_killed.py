"""kill -9 while an answer streams, in a real terminal; then the app again."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from app.config import Config
from app.monitor import Monitor
from app.store import Store
from app.store.records import Role, State
from app.tui.app import IngotApp
from app.tui.measure.recorded import RecordedEngine, RecordedHost
from app.tui.services import Services, Start
from tests.app.tui.chat_app import shown, text_of
from tests.conftest import ROOT


def drained(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass


async def test_what_had_come_is_there_again(home: Path, gguf_file: Path):
    from app.configwriting import set_value

    set_value("sampling.temperature", 5.0)  # it hardly ever ends by itself
    set_value("sampling.top_p", 1.0)
    set_value("sampling.max_tokens", 1000)
    terminal, its_end = pty.openpty()
    app = subprocess.Popen(
        [sys.executable, "-m", "app", "chat", str(gguf_file)],
        cwd=ROOT,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        env={**os.environ, "TERM": "xterm-256color", "INGOT_HOME": str(home)},
        start_new_session=True,
    )
    os.close(its_end)
    threading.Thread(target=drained, args=(terminal,), daemon=True).start()
    try:
        message, saved = asked_and_streaming(home, terminal, app)
    finally:
        app.send_signal(signal.SIGKILL)
        app.wait()
    with Store.open() as store:
        lost = store.message(message)
        assert lost.state is State.LOST
        assert len(lost.text) >= saved
        assert lost.figures is not None
        assert lost.figures.completion_tokens > 0
        assert store.messages(lost.chat)[0].text == "Tell me everything"
        host = RecordedHost(RecordedEngine([], 1))
        start = Start("recorded", chat=lost.chat)
        again = IngotApp(Services(Config(), store, host, Monitor(host), start))
        async with again.run_test(size=(100, 30)) as pilot:
            screen = await shown(again)
            await pilot.pause()
            view: Any = screen.transcript.view_of(message)
            assert view.body.text.strip() == lost.text.strip()
            assert "Ingot ended while this was being written" in text_of(view, "state")
            assert "tokens" in text_of(view, "figures")


def asked_and_streaming(home: Path, terminal: int, app: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The answer's number and how long it was when last looked at; it still streams."""
    limit, asked, ended = time.monotonic() + 60, 0, 0
    while time.monotonic() < limit:
        assert app.poll() is None
        time.sleep(0.02)
        if not list(home.rglob("chats.db")):
            continue
        if asked == ended:  # again in a new chat, when an answer was over too soon
            time.sleep(1.0)
            os.write(terminal, b"\x0eTell me everything\r")
            asked += 1
        with Store.open() as store:
            answers = [
                found
                for chat in store.chats()
                for found in store.messages(chat.id)
                if found.role is Role.ASSISTANT
            ]
        for found in answers:
            if found.state is State.STREAMING and len(found.text) > 30:
                return found.id, len(found.text)
        ended = sum(found.state is not State.STREAMING for found in answers)
    raise AssertionError("no answer came")
