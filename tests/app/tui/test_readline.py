"""Readline's keys where one types: in lines, in areas and in the prompt; and what terminals send
for them."""

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.command import CommandInput

from app.chat.store.records import Role
from app.chat.store.store import ChatStore
from app.tui.help import Palette
from app.tui.widgets.prompt import Area, Line, Prompt, SearchLine
from tests.app.tui.bursts import burst
from tests.app.tui.terminal import Terminal
from tests.support import wait_until

# Text with the cursor before, the keys, and after.
EDITS = [
    ("one two|", "ctrl+a", "|one two"),
    ("|one two", "ctrl+e", "one two|"),
    ("one| two", "ctrl+b", "on|e two"),
    ("one| two", "ctrl+f", "one |two"),
    ("one two.|", "alt+b", "one |two."),
    ("one |two", "alt+b", "|one two"),
    ("snake_case|", "alt+b", "snake_|case"),
    ("|one two", "alt+f", "one| two"),
    ("one|, two", "alt+f", "one, two|"),
    ("~/models/a.gguf|", "alt+backspace", "~/models/a.|"),
    ("see ~/models/a.gguf |", "ctrl+w", "see |"),
    ("|one two", "alt+d", "| two"),
    ("one| two three", "alt+d", "one| three"),
    ("one| two", "ctrl+u", "| two"),
    ("one| two", "ctrl+k", "one|"),
    ("one| two", "ctrl+d", "one|two"),
    ("one| two", "delete", "one|two"),
    ("one| two", "ctrl+left", "|one two"),
    ("one| two", "ctrl+right", "one two|"),
]


class Fields(App[None]):
    def compose(self) -> ComposeResult:
        yield Line()
        yield SearchLine()
        yield Area()
        yield Prompt()


@pytest.mark.parametrize("kind", [SearchLine, Prompt])
async def test_readlines_keys_edit(kind: type[SearchLine | Prompt]):
    async with Fields().run_test() as pilot:
        where = next(one for one in pilot.app.query(kind) if type(one) is kind)
        where.focus()
        for before, key, after in EDITS:
            text, at = before.replace("|", ""), before.index("|")
            if isinstance(where, Line):
                where.value = text
            else:
                where.load_text(text)
            where.go(at)
            await burst(pilot, key)
            now, at = where.spot()
            assert f"{now[:at]}|{now[at:]}" == after, (before, key)


async def test_words_go_on_over_lines():
    async with Fields().run_test() as pilot:
        where = pilot.app.query_one(Prompt)
        where.focus()
        where.load_text("one\ntwo")
        where.go(4)
        await burst(pilot, "alt+b")
        assert where.cursor_location == (0, 0)
        await burst(pilot, "alt+f", "alt+f")
        assert where.cursor_location == (1, 3)
        await burst(pilot, "alt+backspace", "alt+backspace")
        assert where.text == ""


async def test_selected_text_goes_first():
    async with Fields().run_test() as pilot:
        line, area = pilot.app.query(Line).first(), pilot.app.query_one(Area)
        line.value = "one two"
        line.focus()
        line.select_all()
        await burst(pilot, "alt+d")
        assert line.value == ""
        area.load_text("one two")
        area.focus()
        area.select_all()
        await burst(pilot, "ctrl+w")
        assert area.text == ""


async def test_every_text_of_the_app_has_these_keys(bare):
    """Textual's own lines and areas stand nowhere, not even in the palette."""
    found = {"Input(", "TextArea("}
    for file in Path("app/tui").rglob("*.py"):
        for line in file.read_text("utf-8").splitlines():
            for one in found:
                made = line.partition(one)[0]
                assert one not in line or made.endswith("Path") or "class " in made, (file, line)
    async with bare.run_test() as pilot:
        await pilot.press("ctrl+p")
        await wait_until(lambda: isinstance(bare.screen, Palette))
        line = bare.screen.query_one(CommandInput)
        await pilot.press(*"them now", "ctrl+w", "alt+b", "X")
        assert line.value == "Xthem "


def last_chat() -> tuple[str, list[str]]:
    """Its title and what was said in it."""
    with ChatStore.open() as store:
        chats = store.chats()
        messages = store.messages(chats[0].id) if chats else []
    said = [one.text for one in messages if one.role is Role.USER]
    return (chats[0].title or "" if chats else "", said)


async def test_a_terminals_bytes_edit(home: Path, gguf_file: Path):
    """As legacy terminals send them, many keys at once: alt is an escape before the key."""
    edits = (
        "alpha beta gamma x/y"
        "\x17"  # ctrl+w: x/y goes
        "\x1bb\x1bd"  # alt+b, alt+d: gamma goes
        "\x01\x1bf\x1b\x7f"  # ctrl+a, alt+f, alt+backspace: alpha goes
        "A\x06B\x02\x02C"  # ctrl+f and ctrl+b: "AC Bbeta"
        "\x1bd\x1bd"  # alt+d as a held key repeats it: " Bbeta" and what is left go
        "\x05!\x08?"  # ctrl+e, ctrl+h
        "\x1b\rone\x0atwo"  # alt+enter, ctrl+j
    )
    app = Terminal("chat", gguf_file, env={"INGOT_HOME": str(home)})
    try:
        app.wait("q8_0")
        app.press(edits + "\r")
        await wait_until(lambda: last_chat()[1] == ["AC?\none\ntwo"])
        app.press("\x0c")  # ctrl+l renames
        app.wait("Title of this chat")
        app.press("\x15an old  xtitle\x1bb\x08\x1b\x7f\x1b\x7fthe\x04 \r")
        await wait_until(lambda: last_chat()[0] == "the title")
    finally:
        app.close()
