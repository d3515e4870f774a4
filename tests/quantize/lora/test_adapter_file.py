"""`quantize --adapter`: an adapter as a GGUF file, with which a model is the merged one."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quantize.children import run_child
from quantize.errors import SourceError
from quantize.gguf.converter import export_f16
from quantize.lora import merge_lora, open_adapter
from quantize.lora import write_adapter as write_file
from quantize.options import SourceOptions
from quantize.progress import SILENT
from quantize.quality.tokens import Reference
from quantize.source import open_source
from runtimes.engine.loading import load_runner
from runtimes.errors import ModelError
from runtimes.models.registry import read_model
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings
from tests.adapters import make_adapter, write_adapter
from tests.quantize.build import builds_child
from tests.quantize.conftest import run_quantize
from tests.quantize.shapes import SHAPES, make_random_model

TOKENS = [1, 40, 70, 90, 33, 200, 51, 8]
SIZE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
# Of products with biases, with norms behind them, of one product for three, of other layers.
SIZES = {"pebble": {}, "qwen2": SIZE, "qwen3": {**SIZE, "head_dim": 32}, "phi3": SIZE, "gemma3": {}}


def logits(path: Path, adapter: Path | None = None):
    """After every token: the first ones in one step, the last by itself."""
    settings = RunnerSettings(slots=2, context=64, scored=len(TOKENS))
    with contextlib.closing(load_runner(read_model(path), settings)) as runner:
        if adapter:
            runner.adapters.load("one", adapter)
        name = "one" if adapter else None
        rows = StepRow(0, 0, TOKENS[:-1], len(TOKENS) - 1, adapter=name)
        first = runner.execute((rows,)).copy()
        row = StepRow(0, len(TOKENS) - 1, TOKENS[-1:], 1, adapter=name)
        return np.concatenate([first, runner.execute((row,))])


@pytest.fixture(scope="module")
def made(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each model NAME-base, NAME-merged, graphs, and NAME.gguf, the adapter."""
    root, jobs = tmp_path_factory.mktemp("adapters"), []
    for name, sizes in SIZES.items():
        folder = root / name
        model = pebble if name == "pebble" else make_random_model(folder, SHAPES[name], **sizes)
        lora = make_adapter(model, root / f"{name}-lora", modules=("_proj", "lm_head"))
        said = run_quantize(model, "--adapter", lora, "--out", root / "files").stdout
        Path(said.strip()).rename(root / f"{name}.gguf")
        base = open_source(str(model))
        merged = merge_lora(base, open_adapter(str(lora), SILENT), root / "m" / name, root, SILENT)
        jobs += [
            (base, root / f"{name}-base", "onnx-fp32", "cpu"),
            (merged, root / f"{name}-merged", "onnx-fp32", "cpu"),
        ]
    run_child(partial(builds_child.onnx, jobs), what="building", work=root, torch=True)
    return root


@pytest.mark.parametrize("name", SIZES)
def test_with_the_adapter_the_model_is_the_merged_one(made: Path, name: str):
    base, expected = made / f"{name}-base", logits(made / f"{name}-merged")
    assert np.abs(logits(base) - expected).max() > 1
    # The file has the adapter in half precision. Measured: 0.002 to 0.013.
    assert np.abs(logits(base, made / f"{name}.gguf") - expected).max() < 0.05


def test_products_of_rounded_activations_are_left_alone(pebble: Path, tmp_path: Path):
    """Their activations are not those that an adapter was trained with: they are smoothed."""
    run_quantize(pebble, "--recipe", "onnx-w8a8", "--no-measure", "--out", tmp_path / "built")
    adapter = write_adapter(pebble, tmp_path / "poet.gguf", 0)
    with pytest.raises(ModelError, match=r"poet.gguf changes blk.0.attn_q, .* merge it"):
        logits(tmp_path / "built" / "onnx-w8a8", adapter)


def test_with_the_adapter_llama_cpp_has_the_merged_model(
    made: Path, pebble_f16: Path, tmp_path: Path
):
    merged = tmp_path / "merged.gguf"
    export_f16(made / "m" / "pebble", merged, Reference([], [], []), tmp_path)
    expected = logits(merged)
    assert np.abs(logits(pebble_f16) - expected).max() > 1
    assert np.abs(logits(pebble_f16, made / "pebble.gguf") - expected).max() < 0.05


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
        write_file(SourceOptions(str(pebble)), str(lora), tmp_path / "files", SILENT)
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(
    ("more", "said"), [(("--lora", "b"), "give one"), (("--bits", "4"), "builds no model")]
)
def test_an_adapter_file_is_all_that_is_made(pebble: Path, more: tuple[str, str], said: str):
    done = run_quantize(pebble, "--adapter", "a", *more, check=False)
    assert done.returncode
    assert said in done.stderr
