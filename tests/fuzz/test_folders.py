"""Ten hostile folders, the same in every run; `make fuzz` has others, and real commands."""

from __future__ import annotations

from tests.fuzz import folders


def test_no_byte_changes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_FUZZ_KEPT", str(tmp_path))
    figures = folders.run(300.0, 2026, 10, commands=False)
    assert figures["folders"] == 10
    assert figures["steps_done"] > 20
    assert figures["steps_refused"] > 20
