"""`quantize --adapter`: an adapter as a GGUF file, and what llama.cpp makes of it."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from quantize.errors import SourceError
from quantize.lora import write_adapter
from quantize.options import SourceOptions
from quantize.progress import SILENT
from quantize.resolve import resolve
from runtimes.engine.loading import load_runner
from runtimes.models.registry import read_model
from runtimes.runner import StepPlan, StepRow
from runtimes.settings import RunnerSettings
from tests.adapters import make_adapter
from tests.quantize.conftest import run_quantize

TOKENS = [1, 40, 70, 90, 33, 200, 51, 8]


def logits(path: Path, adapter: Path | None = None):
    with contextlib.closing(
        load_runner(read_model(path), RunnerSettings(slots=1, context=64, scored=len(TOKENS)))[0]
    ) as runner:
        base = runner.score(TOKENS).copy()
        if adapter is None:
            return base
        runner.adapters.load("one", adapter)
        rows = StepRow(0, 0, TOKENS, len(TOKENS), adapter="one")
        found = runner.execute(StepPlan((rows,))).copy()
        assert np.array_equal(runner.score(TOKENS), base)
        return found


def test_with_the_adapter_the_model_is_the_merged_one(
    pebble: Path, pebble_f16: Path, tmp_path: Path
):
    lora = make_adapter(pebble, tmp_path / "poet")
    done = run_quantize(pebble, "--adapter", lora, "--out", tmp_path / "files")
    file = tmp_path / "files" / "poet.gguf"
    assert done.stdout.strip() == str(file)
    assert [path.name for path in file.parent.iterdir()] == ["poet.gguf"]
    asked = ("--lora", lora, "--recipe", "f16", "--no-measure", "--out", tmp_path / "merged")
    run_quantize(pebble, *asked)
    expected = logits(resolve(tmp_path / "merged", recipe="f16"))
    assert np.abs(logits(pebble_f16) - expected).max() > 1
    assert np.abs(logits(pebble_f16, file) - expected).max() < 0.05


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"use_rslora": True}, "rank-stabilized"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "trained whole"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha for each"),
        ({"r": 0}, "no usable r"),
    ],
)
def test_what_a_file_cannot_hold(pebble: Path, tmp_path: Path, settings: dict, said: str):
    lora = make_adapter(pebble, tmp_path / "poet", **settings)
    with pytest.raises(SourceError, match=said):
        write_adapter(SourceOptions(str(pebble)), str(lora), tmp_path / "files", SILENT)
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(
    ("more", "said"), [(("--lora", "b"), "give one"), (("--bits", "4"), "builds no model")]
)
def test_an_adapter_file_is_all_that_is_made(pebble: Path, more: tuple[str, str], said: str):
    done = run_quantize(pebble, "--adapter", "a", *more, check=False)
    assert done.returncode
    assert said in done.stderr
