from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding

from app.tui.app import IngotApp
from app.tui.help import HelpScreen
from app.tui.keys import declared, problems, shown, usable
from tests.support import wait_until

DOCS = Path(__file__).resolve().parents[3] / "docs" / "chat.md"


@pytest.mark.parametrize(
    ("key", "told"),
    [("ctrl+q", "ctrl+q"), ("f12", "F12"), ("alt+left", "alt+←"), ("escape", "esc"), ("f", "f")],
)
def test_keys_are_shown_as_people_write_them(key: str, told: str) -> None:
    assert shown(key) == told


def test_a_keymap_that_only_moves_keys_is_fine() -> None:
    assert problems({}) == []
    assert problems({"app.quit": "ctrl+f12", "app.chat": "alt+1"}) == []


def test_keys_may_be_exchanged() -> None:
    assert problems({"app.chat": "f3", "app.compare": "f2"}) == []


def test_an_id_that_does_not_exist_is_told_with_a_likely_one() -> None:
    [told] = problems({"app.quitt": "ctrl+x"})
    assert "app.quitt" in told
    assert "did you mean app.quit?" in told


def test_a_key_that_does_not_exist_is_told() -> None:
    [told] = problems({"app.quit": "ctrl+nonsense"})
    assert "'ctrl+nonsense'" in told


def test_two_bindings_with_one_key_are_told() -> None:
    [told] = problems({"app.quit": "f2"})
    assert "F2 is both app.quit and app.chat; app.quit goes without it" in told


def test_a_key_that_many_bindings_share_is_told_once() -> None:
    [told] = problems({"app.quit": "ctrl+s"})
    assert re.match(r"keymap: ctrl\+s is both app\.quit and chat\.sampling, \w+\.\w+, ", told)
    assert told.endswith("app.quit goes without it")


def test_of_two_bindings_with_one_key_the_first_keeps_it() -> None:
    assert usable({"app.quit": "ctrl+f12"}) == {"app.quit": "ctrl+f12"}
    assert usable({"app.quit": "f2"}) == {}, "F2 is the chat's by itself"
    assert usable({"chat.models": "f10", "chat.chats": "f10"}) == {"chat.models": "f10"}
    kept = usable({"chat.chats": "f10,alt+z", "chat.models": "f10,alt+y"})
    assert kept == {"chat.chats": "f10,alt+z", "chat.models": "alt+y"}
    moved = {"chat.chats": "ctrl+t", "chat.models": "f10"}
    assert usable(moved) == moved, "a key that was given away is free"


async def test_what_shares_a_key_works_and_is_told(bare: Any) -> None:
    keymap = {"app.help": "f2", "app.quit": "ctrl+f12"}
    bare.services.config = replace(bare.services.config, keymap=keymap)
    async with bare.run_test(size=(80, 24), notifications=True) as pilot:
        assert any("F2 is both app.help and app.chat" in n.message for n in bare._notifications)
        await pilot.press("f1")
        await wait_until(lambda: isinstance(bare.screen, HelpScreen))
        await pilot.press("ctrl+f12")
        await wait_until(lambda: bare.return_code == 0)


# What a key with a modifier, or of the upper row, means wherever it does something.
MEANINGS = {
    "ctrl+g": "begin, or go on: Start Build Go on At once",
    "ctrl+r": "once more: Again Look again Presets",
    "ctrl+s": "settings, and to take them: Sampling Length Settings Use Load",
    "ctrl+t": "models and their files: Model Files",
    "ctrl+o": "what was there before: Chats Jobs From chat",
    "ctrl+n": "New",
    "ctrl+l": "Rename",
    "ctrl+d": "take away: Delete Remove Reset line As planned",
    "ctrl+y": "Copy the answer",
    "f8": "a file: Attach Files Prompts file",
    "f9": "to disk: Save Save as preset Export",
    "f10": "the other page: New/Job Next page Deleted",
}


def test_a_key_has_one_meaning_on_all_screens() -> None:
    titles: dict[str, set[str]] = {}
    for _, found in declared():
        for binding in found:
            for key in binding.key.split(","):
                if len(key) > 2 and re.match(r"(ctrl\+|alt\+|f\d)", key):
                    titles.setdefault(key, set()).add(binding.description)
    for key, said in titles.items():
        meant = MEANINGS.get(key, "")
        assert len(said) == 1 or all(one in meant for one in said), (key, said)


def test_no_key_of_a_screen_is_one_of_the_whole_app() -> None:
    everywhere = {b.key for b in Binding.make_bindings(IngotApp.BINDINGS) if b.priority}
    hidden = [
        f"{owner.__name__}: {binding.key}"
        for owner, found in declared()
        for binding in found
        if owner is not IngotApp and binding.key in everywhere
    ]
    assert hidden == []


def test_every_binding_that_can_be_mapped_is_in_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    rows: dict[str, str] = {}
    for area, names in re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE):
        rows[area] = rows.get(area, "") + names  # a long row is split
    for _, found in declared():
        for binding in found:
            if binding.id is not None:
                area, name = binding.id.split(".")
                assert f"`{name}` " in rows.get(area, ""), f"{binding.id} is not in {DOCS.name}"
                assert shown(binding.key) in rows[area]


def test_every_binding_has_an_id() -> None:
    without = [
        f"{owner.__name__}: {binding.key}"
        for owner, found in declared()
        for binding in found
        if binding.id is None
    ]
    assert without == []
