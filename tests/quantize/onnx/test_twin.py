"""Two graphs over one KV cache: passes of few tokens on 4-bit weights, of many on 8 bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quantize.manifest import load_manifest
from runtimes.engine.engine import Engine
from runtimes.errors import ModelError
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.onnx.backend import BACKEND
from runtimes.onnx.runner import OnnxRunner
from runtimes.request import Request, SamplingParams
from runtimes.runner import Logits, StepRow
from runtimes.settings import RunnerSettings
from tests.adapters import write_adapter
from tests.quantize.conftest import run_quantize

PROMPTS = [list(range(20, 20 + count)) for count in (40, 7, 23, 12)]
RECIPE = "onnx-int4-w8a8"
FOLDERS = ("narrow", "wide", RECIPE)


@pytest.fixture(scope="module")
def built(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, and beside it one for each of its graphs alone."""
    out = tmp_path_factory.mktemp("twin") / "built"
    run_quantize(pebble, "--recipe", RECIPE, "--no-measure", "--out", out)
    for name in FOLDERS[:2]:
        shutil.copytree(out / RECIPE, out / name)
        config = json.loads((out / name / "genai_config.json").read_text())
        graph = config["model"]["decoder"]["filename"] = "alone.onnx"
        (out / name / ("wide.onnx" if name == "wide" else "model.onnx")).rename(out / name / graph)
        (out / name / "wide.onnx").unlink(missing_ok=True)
        (out / name / "genai_config.json").write_text(json.dumps(config))
    return out


def _runner(folder: Path, *, reproducible: bool = False) -> OnnxRunner:
    settings = RunnerSettings(slots=4, context=64, reproducible=reproducible)
    return OnnxRunner(read_model(folder), settings)


def _prefilled(runner: OnnxRunner) -> list[Logits]:
    return [
        runner.execute((StepRow(slot, 0, tuple(prompt), len(prompt)),)).copy()
        for slot, prompt in enumerate(PROMPTS)
    ]


def _decoded(runner: OnnxRunner, slots: range, step: int) -> Logits:
    rows = [StepRow(s, len(PROMPTS[s]) + step, (60 + s + step,), 1) for s in slots]
    return runner.execute(rows).copy()


def test_each_pass_runs_on_its_graph_over_one_cache(built: Path, pebble: Path, tmp_path: Path):
    """Prompts are the wide graph's to the last bit, and so are steps of many rows; steps of few are
    the narrow graph's on the keys and values that the wide one wrote."""
    narrow, wide, twin = (_runner(built / name) for name in FOLDERS)
    twin._wide_tokens = twin._wide_rows = 3  # the machine's own choice differs by its load
    assert all(map(np.array_equal, _prefilled(twin), _prefilled(wide)))
    for slot, prompt in enumerate(PROMPTS):
        narrow.kv.load(slot, twin.kv.save(slot), len(prompt))
    for slots in (range(1), range(2, 4)):
        assert np.array_equal(_decoded(twin, slots, 0), _decoded(narrow, slots, 0))
    for slot in (0, 2, 3):
        wide.kv.load(slot, narrow.kv.save(slot), len(PROMPTS[slot]) + 1)
        twin.kv.load(slot, narrow.kv.save(slot), len(PROMPTS[slot]) + 1)
    rows = [StepRow(slot, len(PROMPTS[slot]) + 1, (9,), 1) for slot in (0, 2, 3)]
    many = twin.execute(rows).copy()
    assert np.array_equal(many, wide.execute(rows))
    assert not np.array_equal(many, narrow.execute(rows))
    # Measured as it is used: the prompt on one, the answer on the other.
    text = PROMPTS[0]
    scored = twin.score(text, 20)
    wide.kv.trim(0, 0)
    wide.execute((StepRow(0, 0, tuple(text[:20]), 1),))
    narrow.kv.load(0, wide.kv.save(0), 20)
    assert np.array_equal(scored, narrow.execute((StepRow(0, 20, tuple(text[20:]), 20),)))
    # A row with an adapter is the narrow graph's, others go on as before.
    adapter = write_adapter(pebble, tmp_path / "poet.gguf", 0)
    found = []
    for runner in (narrow, twin):
        runner.adapters.load("poet", adapter)
        found.append(runner.execute((StepRow(0, 0, tuple(PROMPTS[0]), 1, adapter="poet"),)).copy())
    plain = (StepRow(1, 0, tuple(PROMPTS[1]), 1),)
    assert np.array_equal(*found)
    assert np.array_equal(twin.execute(plain), wide.execute(plain))
    for runner in (narrow, wide, twin):
        runner.close()


@pytest.mark.parametrize(
    ("narrow", "wide", "least"),
    [
        ({1: 1, 16: 16}, {1: 2, 16: 8}, 3),
        ({1: 1, 16: 16}, {1: 20, 16: 15}, 16),
        ({1: 6, 16: 16}, {1: 1, 16: 14}, 2),  # faster from the first token on
        ({1: 1, 16: 16}, {1: 2, 16: 16}, 32),
    ],
)
def test_the_wide_graph_begins_where_it_is_faster(
    narrow: dict[int, int], wide: dict[int, int], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def steps(seconds: dict[int, int]) -> SimpleNamespace:
        def prefill(row: StepRow) -> None:
            now[0] += seconds[len(row.tokens)]

        return SimpleNamespace(prefill=prefill)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    kv = SimpleNamespace(context=64, trim=lambda *_: None)
    runner: Any = SimpleNamespace(_steps=steps(narrow), kv=kv)
    wider: Any = steps(wide)
    assert OnnxRunner._crossing(runner, wider) == least


def test_reproducible_rows_do_not_depend_on_companions(built: Path):
    """Then prompts are wide and decoded tokens narrow, however many rows there are."""
    alone, together = (_runner(built / RECIPE, reproducible=True) for _ in range(2))
    assert all(map(np.array_equal, _prefilled(alone), _prefilled(together)))
    for step in range(3):
        found = _decoded(together, range(4), step)
        for slot in range(4):
            assert np.array_equal(_decoded(alone, range(slot, slot + 1), step)[0], found[slot])
    alone.close()
    together.close()


def test_file_memory_and_batch(built: Path, tmp_path: Path):
    (entry,) = load_manifest(built).files
    assert entry.bits == 4
    assert 14 < entry.bits_per_weight < 15
    assert f"{RECIPE}/wide.onnx.data" in entry.sha256
    assert b"model.onnx.data" in (built / RECIPE / "wide.onnx").read_bytes()  # what is equal
    settings = RunnerSettings(slots=4, context=64)
    narrow, wide, both = (estimate(read_model(built / name), settings).weights for name in FOLDERS)
    assert both == narrow + wide
    with Engine.load(built / RECIPE, settings) as engine:
        greedy = SamplingParams(max_tokens=8, ignore_eos=True)
        streams = [engine.submit(Request(prompt, greedy)) for prompt in PROMPTS * 2]
        assert all(len(stream.result().token_ids) == 8 for stream in streams)
    # No graph, and one of another model
    shutil.copytree(built / RECIPE, tmp_path / RECIPE)
    for content in (b"no graph", BACKEND.selftest.read_bytes()):
        (tmp_path / RECIPE / "wide.onnx").write_bytes(content)
        with pytest.raises(ModelError, match=r"wide\.onnx"):
            OnnxRunner(read_model(tmp_path / RECIPE), settings)
