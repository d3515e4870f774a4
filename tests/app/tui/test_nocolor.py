from pathlib import Path

import pytest
from rich.style import Style
from textual.color import Color

from app.tui.app import IngotApp
from app.tui.modes import MODES
from app.tui.services import Start
from app.tui.theme import colourless, no_color, without_colours
from tests.app.tui.chat_app import ANSWER, add_turn, shown
from tests.app.tui.held import recorded
from tests.support import wait_until

WIDGET = Color.parse("#181F27")


def test_colours_go_and_attributes_and_highlights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, told in (("", False), ("1", True)):  # only one that is not empty counts
        monkeypatch.setenv("NO_COLOR", value)
        assert no_color() is told
    for style, left in (
        ("bold italic underline dim #E8A33D on #181F27", "\x1b[1;3;4mx\x1b[0m"),
        ("#11161C on #E8A33D", "\x1b[7mx\x1b[0m"),  # a highlight that was only a background
        ("#D7DEE6 on #1A212A", "x"),
    ):
        assert colourless(Style.parse(style), WIDGET).render("x") == left


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("\x1b[38;2;1;2;3mx\x1b[0m", "x\x1b[0m"),
        ("\x1b[1;38;5;7;4;48;2;1;1;1mx", "\x1b[1;4mx"),
        ("\x1b[31;1mx\x1b[m", "\x1b[1mx\x1b[m"),
        ("\x1b[38:2::1:2:3;7mx", "\x1b[7mx"),
        ("\x1b[39;49mx\x1b[58;5;1m", "x"),
        ("\x1b[2J\x1b[1;1Hx\x1b[?25l", "\x1b[2J\x1b[1;1Hx\x1b[?25l"),
    ],
)
def test_the_last_sieve_leaves_attributes_and_movements(written: str, left: str) -> None:
    assert without_colours(written) == left


Line = tuple[tuple[str, bool, bool, bool], ...]


def drawn(app: IngotApp) -> tuple[Line, ...]:
    """The screen as one sees it without colours: text, and whether it is bold, reversed and
    underlined."""
    return tuple(
        tuple(
            (text, bool(style.bold), bool(style.reverse), bool(style.underline))
            for text, style, _ in strip
            if style is not None
        )
        for strip in app.screen._compositor.render_strips()
    )


async def test_the_mode_and_the_focus_are_told_without_colour(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app, _ = recorded(home)
    store = app.services.store
    chat = store.new_chat().id
    add_turn(store, chat, None, "Tell me of a boat.", ANSWER)
    app.services.start = Start("recorded", chat=chat)
    titles = {mode.title for mode in MODES}
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(app)
        for mode in MODES:
            await pilot.press(mode.key)
            await wait_until(lambda mode=mode: app.current_mode == mode.name)
            await pilot.pause()
            told = {text.strip(): how for text, *how in drawn(app)[0] if text.strip() in titles}
            assert told.keys() == titles
            assert [title for title, how in told.items() if any(how)] == [mode.title]
            if mode.name == "quantize":
                reversed_ = {text.strip() for line in drawn(app) for text, _, on, _ in line if on}
                assert "1 Choose" in reversed_  # the page
            first, seen = app.screen.focused, []
            while not seen or app.screen.focused is not first:
                seen.append(drawn(app))
                await pilot.press("tab")
                await pilot.pause()
            assert len(set(seen)) == len(seen), "each place that has the focus looks another way"
