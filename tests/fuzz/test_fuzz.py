"""A few hundred cases of each fuzzer, the same in every run; `make fuzz` has others."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.fuzz import cases

SECONDS = 300.0  # the number of cases ends a run, not its time


@pytest.mark.parametrize(
    ("target", "count"),
    [
        ("reading", 400),
        ("rows", 40),
        ("kept", 60),
        ("chats", 4),
        ("hub", 12),
        ("headers", 500),
        ("documents", 60),
    ],
)
def test_nothing_is_found(target, count, pebble_built, tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_TEST_BUILT", str(pebble_built))
    monkeypatch.setenv("INGOT_FUZZ_KEPT", str(tmp_path))
    figures = import_module(f"tests.fuzz.{target}").run(SECONDS, 2026, count)
    assert figures["cases"] == count
    if target == "headers":  # neither all nor none of them are past their first bytes
        assert min(figures["opened"], figures["refused"]) > 50


def test_what_is_wrong_is_found(tmp_path, monkeypatch):
    """An error, a change elsewhere: each is told once, with the case to run again."""
    monkeypatch.setenv("INGOT_FUZZ_KEPT", str(tmp_path))

    def one(case: cases.Case) -> None:
        case.write("made", b"x")
        if case.number == 3:
            (case.folder.parent / "beside.txt").write_text("changed")
        if case.number in (5, 6):
            raise KeyError("x")

    with pytest.raises(cases.FoundError) as found:
        cases.loop("own", one, SECONDS, 7, 10)
    changed, raised = found.value.violations
    assert "changed what is not its own" in changed
    assert "--only own --seed 7 --case 3" in changed
    assert "KeyError at tests/fuzz/test_fuzz.py" in raised
    assert found.value.figures["cases"] == 10
    assert found.value.figures["violations_again"] == 1
    assert (tmp_path / "own-7-5" / "made").read_bytes() == b"x"
