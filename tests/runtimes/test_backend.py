"""A runtime that Ingot knows nothing of is put into the registry, and everything accepts it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.models.catalog import catalog
from app.models.pulling import find_builds
from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.errors import ModelError
from runtimes.machine.selftest import ensure
from runtimes.models import registry
from runtimes.models.registry import backend_of, read_model, tokenizer_of
from runtimes.planner.candidates import Overrides, PlanTask
from runtimes.planner.measure import Workload, measure_depths
from runtimes.planner.search import make_plan
from runtimes.request import SamplingParams
from runtimes.runner import Logits, StepRows
from runtimes.settings import RunnerSettings
from tests.conftest import ROOT

TEXTS = "one two three four five\nPebble is a small model of words\n"
REGISTER = "from runtimes.models import registry\nregistry.MODULES['toy'] = 'toy_backend'\n"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model of the toy runtime, which is registered here and in every child process."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copy(Path(__file__).parent / "toy" / "toy_backend.py", folder)
    (folder / "sitecustomize.py").write_text(REGISTER)
    (folder / "tiny.toy").write_text(TEXTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
        patch.setenv("INGOT_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setitem(registry.MODULES, "toy", "toy_backend")
        patch.delitem(sys.modules, "toy_backend", raising=False)
        python("runtimes.machine.selftest_child", "toy", "--record")
        yield folder / "tiny.toy"


def python(*words: object) -> str:
    command = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_backend_has_the_name_that_it_is_registered_by() -> None:
    assert [one.name for one in registry.backends()] == list(registry.MODULES)
    fields = set(RunnerSettings.__dataclass_fields__)
    assert all(one.knows <= fields for one in registry.backends())


def test_a_model_file_belongs_to_the_runtime_that_knows_it(toy: Path, tmp_path: Path) -> None:
    model = read_model(toy)
    assert (model.runtime, backend_of(model).label) == ("toy", "Toy")
    assert tokenizer_of(model).encode("Pebble is") == [1, 5]
    (tmp_path / "empty.toy").touch()
    with pytest.raises(ModelError, match="has no words"):
        read_model(tmp_path / "empty.toy")


def test_the_library_finds_it(toy: Path) -> None:
    assert resolve(toy.parent) == toy
    assert [entry.format for entry in catalog([toy]) if entry.path == toy] == ["toy"]
    (build,) = find_builds(["README.md", "small/tiny.toy"])
    assert (build.label, build.kind, build.main) == ("tiny", "toy", "small/tiny.toy")


def test_its_self_test_runs_in_a_child(toy: Path) -> None:
    health = ensure("toy")
    assert health.usable, health.warning
    assert health.kernels == ("numpy",)


def test_the_engine_runs_it(toy: Path) -> None:
    with Engine.load(toy, RunnerSettings(slots=2)) as engine:
        prompts = [engine.encode(text) for text in ("Pebble is", "one two", "small model")]
        done = engine.generate(prompts, SamplingParams(max_tokens=8, temperature=0.0))
    texts = [one.text for one in done]
    assert texts == [" a small model of words", " three four five", " of words"]


def test_the_planner_measures_it(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimes.planner.search.MOST_ROUNDS", 1)
    task = PlanTask("batch", "memory", 1, 1 << 30, overrides=Overrides(slots=2, context=128))
    plan = make_plan([read_model(toy)], task)
    assert (plan.runtime, plan.settings.kv_type, plan.settings.gpu_layers) == ("toy", "f16", 0)
    assert plan.figures.prefill_tps > 0


def test_speed_is_that_of_all_rows_however_slowly_their_prompts_go_in(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.backend("toy")
    decoded: list[int] = []

    class Slow(sys.modules["toy_backend"].Bigrams):  # type: ignore[misc]
        def __init__(self, *words: object) -> None:
            super().__init__(*words)
            self.capabilities = replace(self.capabilities, mixed_batch=False)

        def execute(self, plan: StepRows) -> Logits:
            if len(plan[0].tokens) > 1:
                time.sleep(0.2)  # a user's rows would wait for two such prompts, not for a third
            else:
                decoded.append(len(plan))
            return super().execute(plan)

    monkeypatch.setattr("toy_backend.Bigrams", Slow)
    measure_depths(toy, Workload(rows=(3,), prompt_tokens=4, decode_tokens=8), repeats=1)
    assert decoded == [3] * (3 + 7)


def test_ingot_run_answers_with_it(toy: Path) -> None:
    done = python("app", "run", toy, "Pebble is", "--raw", "--json", "--temperature", "0")
    answer = json.loads(done)
    assert (answer["text"], answer["runtime"]) == (" a small model of words", "toy")
