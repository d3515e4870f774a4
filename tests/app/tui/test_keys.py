import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from app.tui.help import HelpScreen
from app.tui.keys import at_once, checked, declared, shown
from app.tui.widgets.prompt import Area, Line
from tests.support import wait_until

DOCS = Path(__file__).resolve().parents[3] / "docs" / "chat.md"


@pytest.mark.parametrize(
    ("key", "told"),
    [("ctrl+q", "ctrl+q"), ("f12", "F12"), ("alt+left", "alt+←"), ("escape", "esc"), ("f", "f")],
)
def test_keys_are_shown_as_people_write_them(key: str, told: str):
    assert shown(key) == told


@pytest.mark.parametrize(
    ("keymap", "told", "kept"),
    [
        ({"app.quitt": "ctrl+x"}, "no binding app.quitt; did you mean app.quit?", None),
        ({"app.quit": "ctrl+nonsense"}, "'ctrl+nonsense'", None),
        # F2 is the chat's by itself
        ({"app.quit": "f2"}, "F2 is both app.quit and app.chat; app.quit goes without it", {}),
        ({"app.quit": "ctrl+s"}, "chat.sampling, ", {}),  # one of many, told once
        # of a screen and of what has the focus there
        ({"batch.pause": "enter"}, "enter is both batch.pause and batch.open;", {}),
        ({"chat.models": "ctrl+b"}, "ctrl+b is both chat.models and text.cursor_left;", {}),
        # of what is around it
        ({"batch.search": "escape"}, "esc is both batch.search and batch.search_leave;", {}),
        # of the class above
        ({"batch.leave_run": "y"}, "y is both batch.leave_run and confirm.yes;", {}),
        # of a screen before anything else, where one types
        ({"chat.rename": "n"}, "n is both chat.rename and what one types;", {}),
        # of several the first keeps it
        ({"chat.models": "f10", "chat.chats": "f10"}, "F10 is both", {"chat.models": "f10"}),
        (
            {"chat.chats": "f10,alt+z", "chat.models": "f10,alt+y"},
            "F10 is both",
            {"chat.chats": "f10,alt+z", "chat.models": "alt+y"},
        ),
        (
            {"message.copy": "alt+q", "chat.rename": "alt+q"},
            "alt+q is both",
            {"message.copy": "alt+q"},
        ),
    ],
)
def test_what_is_wrong_with_a_keymap_is_told_and_goes(
    keymap: dict[str, str], told: str, kept: dict[str, str] | None
):
    usable, [problem] = checked(keymap)
    assert told in problem
    assert usable == (keymap if kept is None else kept)


@pytest.mark.parametrize(
    "keymap",
    [
        {},
        {"app.quit": "ctrl+f12", "app.chat": "alt+1"},
        {"app.chat": "f3", "app.compare": "f2"},  # exchanged
        {"chat.chats": "ctrl+t", "chat.models": "f10"},  # a key that was given away is free
        {"blind.skip": "s"},
        {"batch.pause": "z"},
        {"monitor.level": "v", "compare.again": "alt+v"},  # of screens that are never together
    ],
)
def test_a_keymap_that_shares_nothing_is_fine(keymap: dict[str, str]):
    assert checked(keymap) == (keymap, [])


def test_a_keymap_of_the_documentation_is_fine():
    found = re.search(r"\[keymap\][^\n]*\n((?:\"[^\n]+\n)+)", DOCS.read_text(encoding="utf-8"))
    assert found
    assert checked(tomllib.loads(found[1]))[1] == []


async def test_what_shares_a_key_works_and_is_told(bare):
    keymap = {"app.help": "f2", "app.quit": "ctrl+f12"}
    bare.services.config = replace(bare.services.config, keymap=keymap)
    async with bare.run_test(size=(80, 24), notifications=True) as pilot:
        assert any("F2 is both app.help and app.chat" in n.message for n in bare._notifications)
        await pilot.press("f1")
        await wait_until(lambda: isinstance(bare.screen, HelpScreen))
        await pilot.press("ctrl+f12")
        await wait_until(lambda: bare.return_code == 0)


# What is said of keys that are said to do several things: exactly this, and all of it is ...
MEANINGS = {
    # ... one thing that is done to what is at hand
    "ctrl+g": {"Go on", "Start", "Build"},  # begin, or go on
    "ctrl+r": {"Again", "Look again"},  # once more
    "ctrl+s": {"Sampling", "Settings", "Length", "Use", "Load", "Take the folder"},  # settings, to
    "ctrl+t": {"Model", "Files"},  # models and their files                         # take as set
    "ctrl+o": {"Chats", "Jobs", "From chat"},  # what was there before
    "delete": {"Delete", "Delete preset", "Forget", "Leave out"},  # take away
    "ctrl+d": {"Delete", "Delete preset", "Forget", "Leave out"},
    "ctrl+y": {"Copy", "Copy the answer"},
    "alt+r": {"Reset all", "As planned"},  # all lines as they were meant to be
    "f7": {"System", "Presets"},  # what was saved to begin with
    "f8": {"Attach", "Files", "Prompts file"},  # a file
    "f9": {"Save", "Save as preset", "Export"},  # to disk
    "f10": {"New/Job", "Next page", "Deleted"},  # the other page
    "slash": {"Search", "Filter"},
    "c": {"Copy", "Copy path"},
    "p": {"Pause", "Pause it"},
    "r": {"Again", "Resume", "Let it run"},  # run, once more
    # ... to go in, out, or on
    "enter": {
        *("Send", "OK", "Use", "Choose", "Take", "Take it", "Select", "Open", "Chat"),
        *("Tick", "Edit and branch"),
        "Back",  # from a row that was opened with it
    },
    "space": {"Tick", "Mark", "Choose", "Take", "Thinking, calls"},  # what the cursor is on
    "escape": {"Back", "Stop", "Stop / Back", "Clear the filter"},
    "tab": {"Next", "Complete the path", "Complete a command"},
    # ... to move
    "up": {"Row above", "Card above", "Message above", "Earlier prompt", "To the list"},
    "down": {"Row below", "Card below", "Message below", "Later prompt", "To the list"},
    "left": {"Character left", "Card before", "Earlier", "Left"},
    "right": {"Character right", "Card after", "Later", "Right"},
    "home": {"First row", "First card", "First command", "To the beginning"},
    "end": {"Last row", "Last card", "Last command", "To the end"},
}


def test_a_key_has_one_meaning_on_all_screens():
    titles: dict[str, set[str]] = {}
    for _, found in declared():
        for binding in found:
            if binding.description:
                titles.setdefault(binding.key, set()).add(binding.description)
    assert {key: said for key, said in titles.items() if len(said) > 1} == MEANINGS


# Bindings that act at once and have a key in common, which does the same in both, or leads one step
# out or one row on in the inner one first. All others that act at once have keys of their own.
IN_COMMON = {
    ("batch.open", "table.select"),
    ("quantize.chat_row", "table.select"),
    ("models.choose", "table.select"),
    *((f"{area}.up", "table.up") for area in ("find", "models")),
    *((f"{area}.down", "table.down") for area in ("find", "models")),
    *((f"{area}.pageup", "table.page_up") for area in ("find", "models")),
    *((f"{area}.pagedown", "table.page_down") for area in ("find", "models")),
    *((f"{area}.home", "table.first") for area in ("find", "models")),
    *((f"{area}.end", "table.last") for area in ("find", "models")),
    *((f"{area}.leave", "panel.leave") for area in ("chats", "find", "models")),
    ("chat.stop", "sidebar.leave"),
    *(("transcript.up", f"{area}.up") for area in ("message", "starter")),
    *(("transcript.down", f"{area}.down") for area in ("message", "starter")),
}


def test_what_acts_at_once_has_keys_of_its_own():
    shared = set()
    for usual in at_once():
        for key in {key for keys in usual.values() for key in keys}:
            first, *others = (name for name in usual if key in usual[name])
            shared |= {(first, other) for other in others}
    assert shared == IN_COMMON


def test_no_key_of_readline_is_taken_from_where_one_types():
    """One with priority acts before a focused text would have it."""
    text = {binding.key for one in (Line, Area) for _, binding in one._merged_bindings or ()}
    own = {f"ctrl+{letter}" for letter in "abdefhkuw"} | {
        "alt+b",
        "alt+d",
        "alt+f",
        "alt+backspace",
    }
    assert own - {"ctrl+h"} <= text, "ctrl+h is backspace to a terminal"
    taken = [
        f"{owner.__name__}: {binding.key}"
        for owner, found in declared()
        for binding in found
        if binding.priority and binding.key in own
    ]
    assert taken == []


def test_every_binding_can_be_mapped_and_is_in_the_documentation():
    text = DOCS.read_text(encoding="utf-8")
    rows: dict[str, str] = {}
    for area, names in re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE):
        rows[area] = rows.get(area, "") + names  # a long row is split
    for _, found in declared():
        for binding in found:
            assert binding.id is not None, binding
            area, name = binding.id.split(".")
            assert f"`{name}` " in rows.get(area, ""), f"{binding.id} is not in {DOCS.name}"
            assert shown(binding.key) in rows[area]
