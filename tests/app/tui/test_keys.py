from __future__ import annotations

import pytest

from app.tui.keys import problems, shown


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
    assert "F2 is both app.chat and app.quit" in told
