from __future__ import annotations

from pathlib import Path

import pytest

from app.pathcompletion import completions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("notes.md", "Nightly.txt", "names.txt", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "deep.txt").touch()
    return tmp_path


def test_folders_come_first_and_end_with_a_slash(folder: Path) -> None:
    assert completions(f"{folder}/n") == [
        f"{folder}/nested/",
        f"{folder}/Nightly.txt",
        f"{folder}/names.txt",
        f"{folder}/notes.md",
    ]
    assert completions(f"{folder}/nested/") == [f"{folder}/nested/deep.txt"]


def test_hidden_names_are_for_those_who_type_a_dot(folder: Path) -> None:
    assert f"{folder}/.hidden" not in completions(f"{folder}/")
    assert completions(f"{folder}/.h") == [f"{folder}/.hidden"]


def test_the_home_folder_stays_a_tilde(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert completions("~/notes") == ["~/notes.md"]


def test_a_relative_path_is_of_the_folder_one_is_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert completions("names") == ["names.txt"]


@pytest.mark.parametrize("text", ["/no/such/folder/x", "\0", "notes.md/x"])
def test_what_cannot_be_read_has_no_completions(text: str) -> None:
    assert completions(text) == []


def test_no_more_than_asked_for(folder: Path) -> None:
    assert len(completions(f"{folder}/", most=2)) == 2
