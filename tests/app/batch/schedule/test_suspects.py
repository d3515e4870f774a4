"""Only what ran when the worker died is suspected, and each crash is counted once."""

from __future__ import annotations

from app.batch.schedule.suspects import Suspects


def test_what_waited_is_innocent() -> None:
    suspects: Suspects[str] = Suspects()
    order = ["a", "b", "c"]
    for name in ("c", "a", "b"):  # however the errors come in
        suspects.crashed(name, order, 2)
        suspects.add(name, ran=suspects.ended(name))
    assert suspects.crashes == 1
    assert len(suspects) == 3
    assert suspects.open
    assert [suspects.next_suspect(), suspects.next_suspect()] == ["a", "b"]
    assert not suspects.open
    assert (suspects.next_innocent(), suspects.next_innocent()) == ("c", None)


def test_a_second_crash_is_another_one() -> None:
    suspects: Suspects[str] = Suspects()
    suspects.crashed("a", ["a", "b"], 1)
    assert suspects.ended("a")
    suspects.crashed("b", ["b"], 1)  # still of the first one
    assert suspects.crashes == 1
    assert not suspects.ended("b")
    suspects.crashed("a2", ["a2", "c"], 1)
    assert (suspects.crashes, suspects.ended("c"), suspects.ended("a2")) == (2, False, True)
