"""A few schemas and tools made at random, on both runtimes; `many_schemas` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimes.engine.engine import Engine
from runtimes.settings import RunnerSettings
from tests.app.openai.many_schemas import answers, schema_bodies, tool_bodies

pytest.importorskip("jsonschema")


@pytest.mark.parametrize("recipe", ["q8_0", "onnx-int8"])
def test_what_finishes_follows(pebble_built: Path, recipe: str) -> None:
    from quantize.resolve import resolve

    path = resolve(pebble_built, recipe=recipe)
    with Engine.load(path, RunnerSettings(slots=8, context=1024)) as engine:
        for bodies in (schema_bodies(8, 5), tool_bodies(6, 5)):
            found = answers(engine, bodies)
            assert found.refused == []
            assert found.wrong == []
            assert found.follow == found.finished > 0
