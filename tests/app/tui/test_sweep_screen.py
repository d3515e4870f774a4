"""The panel of the last sweep, over a file as `ingot bench --sweep` leaves it."""

from __future__ import annotations

from pathlib import Path

from textual.widgets import Static

from app.sweeps import Sweep, SweepCell, SweepResult, keep, last_path
from app.tui.app import IngotApp
from app.tui.screens.monitor import NONE, SweepScreen
from app.tui.widgets.chart import Chart
from tests.support import wait_until


def swept(name: str = "river-q4_0.gguf") -> Sweep:
    """Two files, two lengths."""
    measured = [
        SweepResult(SweepCell(file, "f16", *length, rows, "ingot"), (1.0,), tps * rows**0.5)
        for length in ((16, 128), (128, 32))
        for file, tps in ((name, 58.0), ("onnx-[int4]", 40.0))
        for rows in (1, 8, 64)
    ]
    return Sweep("a processor", 2, 4e10, tuple(measured))


async def test_the_last_sweep_is_shown(app: IngotApp, home: Path) -> None:
    async with app.run_test(size=(100, 32)) as pilot:
        await pilot.press("f6", "b")
        await wait_until(lambda: isinstance(app.screen, SweepScreen))
        await wait_until(lambda: NONE in [str(one.render()) for one in app.screen.query(Static)])
        await pilot.press("escape")
        last_path().parent.mkdir(parents=True)
        last_path().write_text("{")  # not what it should be: as if there were none
        await pilot.press("b")
        await wait_until(lambda: isinstance(app.screen, SweepScreen))
        assert not app.screen.query(Chart)
        await pilot.press("escape")
        keep(swept())
        await pilot.press("b")
        await wait_until(lambda: bool(app.screen.query(Chart)))
        first, second = app.screen.query(Chart)
        assert [first.border_title, second.border_title] == ["16 + 128 tokens", "128 + 32 tokens"]
        assert [one.marker for one in first.series] == ["●", "■"], "colour alone says nothing"
        assert [one.name for one in first.series] == ["river-q4_0.gguf", "onnx-[int4]"]
        assert [x for x, _ in second.series[1].points] == [1, 8, 64]
        verdict = str(app.screen.query_one("#sweep-verdicts Static", Static).render())
        assert "at most 8.00x (river-q4_0.gguf, 64 rows)" in verdict
