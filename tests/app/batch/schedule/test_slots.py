"""The default number of slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.batch.schedule.slots import default_slots
from runtimes.models.memory import estimate
from runtimes.models.modelfile import ModelFile


@pytest.mark.parametrize("kind", ["gguf_file", "onnx_folder"])
def test_slots_follow_rows_and_memory(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    model = ModelFile.read(path)
    plenty = 2**40
    assert default_slots(model, None, 1000, plenty) == 16
    assert default_slots(model, None, 3, plenty) == 3
    assert default_slots(model, None, 1000, 0) == 1

    # A quarter of the free memory is left alone.
    for slots in (4, 5):
        need = estimate(model, slots, model.context_length).total
        assert default_slots(model, None, 1000, int(need / 0.75) + 2) == slots
        assert default_slots(model, None, 1000, int(need / 0.75) - 2) == slots - 1
    assert default_slots(model, model.context_length // 2, 1000, int(need / 0.75) + 2) >= 7
