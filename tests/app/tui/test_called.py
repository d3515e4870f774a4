"""The bell and the notification that call a user who looks elsewhere when work has ended."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual import events
from textual.drivers.headless_driver import HeadlessDriver

from app.config.settings import Sampling
from app.tui.app import IngotApp
from app.tui.terminal import notice
from tests.app.tui.chat_app import answered, shown
from tests.app.tui.conftest import ask
from tests.app.tui.held import HeldHost
from tests.support import wait_until

_BELL, _TOLD = "\a", "\x1b]9;Ingot: the answer is there\x1b\\"


async def test_one_is_called_only_while_one_looks_elsewhere(
    held: HeldHost, make: Callable[..., IngotApp], monkeypatch: pytest.MonkeyPatch
):
    written: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, text: written.append(text))
    for name in ("TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM_PROGRAM", "ghostty")
    app = make(Sampling(max_tokens=20, temperature=0.0), host=held)
    cases: list[tuple[Any, int, bool, list[str]]] = [
        ("bell", 0, True, [_BELL]),
        ("desktop", 0, True, [_TOLD]),
        ("bell", 0, False, []),
        ("bell", 100, True, []),
    ]
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(app)
        for number, (notify, after, blurred, expected) in enumerate(cases, 1):
            config = replace(app.services.config, notify=notify, notify_after=after)
            app.services.config = config
            held.go.clear()
            await ask(pilot, "What is the capital of France?")
            await wait_until(lambda: screen.turn is not None)
            assert app.app_focus
            if blurred:
                app.post_message(events.AppBlur())
                await wait_until(lambda: not app.app_focus)
            written.clear()
            held.go.set()
            await answered(screen, 2 * number)
            assert [text for text in written if text in (_BELL, _TOLD)] == expected


def test_a_notification_is_text_alone(monkeypatch: pytest.MonkeyPatch):
    for name in ("TMUX", "STY", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    hostile = "a\x1b\\\x07\x9c\n\u202eb" + "x" * 999
    for term, begin in (
        ("xterm-kitty", "\x1b]99;;"),
        ("xterm-ghostty", "\x1b]9;"),
        ("foot-direct", "\x1b]777;notify;Ingot;"),
    ):
        monkeypatch.setenv("TERM", term)
        sent = notice(hostile, desktop=True)
        said = sent.removeprefix(begin).removesuffix("\x1b\\")
        assert len(sent) == len(begin) + len(said) + 2
        assert said.isprintable()
        assert said.startswith("a\u241b")
        assert len(said) == 200
        assert notice(hostile, desktop=False) == "\a"
    monkeypatch.setenv("TERM", "xterm-256color")
    assert notice(hostile, desktop=True) == "\a"
    monkeypatch.setenv("TERM_PROGRAM", "WezTerm")
    assert notice("x", desktop=True) == "\x1b]9;x\x1b\\"
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    assert notice("x", desktop=True) == "\a"
