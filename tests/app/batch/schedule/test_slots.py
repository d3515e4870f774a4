"""The default number of slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.batch.schedule.engines import default_slots
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings


@pytest.mark.parametrize("kind", ["gguf_file", "onnx_folder"])
def test_slots_follow_rows_and_memory(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    model = read_model(path)
    plenty = 2**40
    assert default_slots(model, RunnerSettings(), 1000, plenty) == 16
    assert default_slots(model, RunnerSettings(), 3, plenty) == 3
    assert default_slots(model, RunnerSettings(), 1000, 0) == 1

    # A quarter of the free memory is left alone.
    for slots in (4, 5):
        need = estimate(model, RunnerSettings(slots=slots)).total
        assert default_slots(model, RunnerSettings(), 1000, int(need / 0.75) + 2) == slots
        assert default_slots(model, RunnerSettings(), 1000, int(need / 0.75) - 2) == slots - 1
    short = RunnerSettings(context=model.context_length // 2)
    assert default_slots(model, short, 1000, int(need / 0.75) + 2) >= 7
