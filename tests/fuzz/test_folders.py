"""Twenty hostile folders, the same in every run; `make fuzz` has others, and real commands."""

from __future__ import annotations

from tests.fuzz import folders


def test_no_byte_changes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_FUZZ_KEPT", str(tmp_path))
    figures = folders.run(300.0, 2026, 20, commands=False)
    assert figures["folders"] == 20
    assert figures["steps_done"] > 20
    assert figures["steps_refused"] > 20


def test_hostile_folders_are_full_of_links(tmp_path):
    made = list(folders.hostile_folders(7, 5, tmp_path))
    links = [path for folder in made for path in folder.rglob("*") if path.is_symlink()]
    assert len(links) > 5
    assert folders.seen(tmp_path / "elsewhere")["letter.txt"]
