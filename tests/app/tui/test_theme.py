"""Text that can be read, in every theme that can be chosen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from app.tui import theme
from app.tui.app import IngotApp
from app.tui.screens.dialogs import ThemeScreen
from app.tui.services import Start
from tests.app.tui.chat_app import ANSWER, add_turn, shown
from tests.app.tui.held import recorded
from tests.support import wait_until

Palette = tuple[tuple[int, int, int], ...]

# xterm's sixteen colours (XTerm-col.ad), and the Linux console's (drivers/tty/vt/vt.c).
PALETTES = {
    name: tuple(Color.parse(f"#{one}").rgb for one in colours.split())
    for name, colours in {
        "xterm": "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5"
        " 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff",
        "console": "000000 aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa aaaaaa"
        " 555555 ff5555 55ff55 ffff55 5555ff ff55ff 55ffff ffffff",
    }.items()
}
THEMES = [one for one in (*theme.OWN, *BUILTIN_THEMES.values()) if not one.ansi]
KEYS = ("f2", "f4", "f5", "ctrl+p", "escape", "f1")
# Which have all kinds of text that the others have: for some themes that are not ours.
EVERY = ("f2", "f5", "f1")


@pytest.fixture
def app(home: Path) -> IngotApp:
    app, _ = recorded(home)
    store = app.services.store
    chat = store.new_chat().id
    add_turn(store, chat, None, "Tell me of a *boat*.", ANSWER)
    app.services.start = Start("recorded", chat=chat)
    return app


def written(app: IngotApp) -> Iterator[tuple[str, RichColor, RichColor]]:
    """What is drawn now, with the colours of ink and paper; of a panel only its box counts, for
    what is behind it is dimmed."""
    seen = next(
        (box.region for box in app.screen.query(".box, CommandPalette > Vertical")),
        app.screen.region,
    )
    for strip in app.screen._compositor.render_strips()[seen.y : seen.bottom]:
        for text, style, _ in strip.crop(seen.x, seen.right):
            # One letter may be the cursor's, a block in the colours of what it stands on.
            if len(text) == 1 or style is None or not any(map(str.isalnum, text)):
                continue
            ink, behind = style.color, style.bgcolor
            if style.reverse:
                ink, behind = behind, ink
            if ink is not None and behind is not None:
                yield text.strip(), ink, behind


def faint(app: IngotApp, palette: Palette | None = None) -> list[tuple[str, float]]:
    """What is drawn now with less contrast than text needs; in sixteen colours, which are
    ``palette``."""
    found = []
    for text, *pair in written(app):
        ink, behind = (
            Color.from_rich_color(colour) if palette is None else seen_as(colour, palette)
            for colour in pair
        )
        ratio = theme.contrast(ink, behind)
        if ratio < theme.CONTRAST:
            found.append((text, round(ratio, 2)))
    return found


def seen_as(colour: RichColor, palette: Palette) -> Color:
    """A colour as a terminal of sixteen shows it, to which Rich brings down any other."""
    number = colour.downgrade(ColorSystem.STANDARD).number
    assert number is not None, "the terminal's default may be light or dark"
    return Color(*palette[number])


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [("#000000", "#ffffff", 21.0), ("#777777", "#ffffff", 4.48), ("#ff0000", "#0000ff", 2.15)],
)
def test_contrast_is_that_of_wcag(one: str, other: str, ratio: float) -> None:
    assert round(theme.contrast(Color.parse(one), Color.parse(other)), 2) == ratio
    assert round(theme.contrast(Color.parse(other), Color.parse(one)), 2) == ratio


def test_what_is_readable_stays_as_it_is() -> None:
    for own in THEMES[:2]:  # our own
        made = {**own.to_color_system().generate(), **own.variables}
        legible = theme.legible(made)
        for name in ("foreground", "text-primary", "text-success", "text-error", "text-warning"):
            assert Color.parse(legible[name]).rgb == Color.parse(made[name]).rgb, (own.name, name)


@pytest.mark.parametrize("each", THEMES, ids=lambda each: each.name)
def test_text_can_be_read_and_hues_told_apart(each: Theme) -> None:
    made = theme.legible({**each.to_color_system().generate(), **each.variables})
    pairs = [(name, under) for name in theme._TEXT for under in ("background", "surface", "panel")]
    for name, under in (*pairs, *theme._LOOK["text-on"].items()):
        if name in made:
            seen = theme.contrast(Color.parse(made[name]), Color.parse(made[under]))
            assert seen >= theme.CONTRAST, (name, under)
    assert len({made[f"hue-{number}"] for number in (1, 2, 3, 4)}) == 4


async def test_all_that_is_drawn_can_be_read(app: IngotApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(app)
        told = {}

        def look(key: str, name: str, palette: Palette | None = None) -> None:
            if bad := faint(app, palette):
                told[key, name] = bad

        async def use(one: str) -> None:
            app.theme = one
            await pilot.pause()

        for one in THEMES[:2]:  # each means that all widgets get their styles anew
            await use(one.name)
            for key in KEYS:
                await pilot.press(key)
                await pilot.pause()
                look(key, one.name)
        for key, one in zip(EVERY, THEMES[2:], strict=False):
            await pilot.press(key)
            await use(one.name)
            look(key, one.name)
        await use(theme.INGOT_TERMINAL.name)
        for key in KEYS:
            await pilot.press(key)
            await pilot.pause()
            for palette, colours in PALETTES.items():
                look(key, palette, colours)
        assert not told


async def test_themes_are_shown_before_one_is_picked(bare: Any, home: Path) -> None:
    settings = home / "config" / "config.toml"
    async with bare.run_test(size=(80, 24)) as pilot:
        await pilot.press("f12")
        await wait_until(lambda: isinstance(bare.screen, ThemeScreen))
        await pilot.press("down")
        await wait_until(lambda: bare.theme == "ingot-light")
        await pilot.press("escape")
        await wait_until(lambda: not isinstance(bare.screen, ThemeScreen))
        assert bare.theme == "ingot"
        assert not settings.exists()
        await pilot.press("f12")
        await wait_until(lambda: isinstance(bare.screen, ThemeScreen))
        await pilot.press("down", "enter")
        await wait_until(settings.exists)
        assert bare.theme == "ingot-light"
        assert 'theme = "ingot-light"' in settings.read_text()
