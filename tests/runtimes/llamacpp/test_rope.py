"""A context longer than the model's: the same logits as of a file that says so itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.engine.loading import load_runner
from runtimes.engine.session import header_of
from runtimes.errors import ModelError, RequestError
from runtimes.llamacpp.native import library
from runtimes.models.registry import read_model, stretched
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings, rope_scaling


def _logits(path: Path, rope: str | None = None) -> Any:
    model = read_model(path)
    settings = RunnerSettings(slots=1, context=model.context_length, threads=1, rope=rope)
    runner = load_runner(model, settings)
    tokens = [(7919 * i + 11) % runner.capabilities.vocab_size for i in range(200)]
    found = np.array(runner.execute((StepRow(0, 0, tokens, 1),)))
    runner.close()
    return found


def _file_says(said: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    """Let llama.cpp load files as if these were among their metadata."""
    lib = library()
    overrides = (lib.llama_model_kv_override * (len(said) + 1))()
    kinds = {int: (0, "val_i64"), float: (1, "val_f64"), bytes: (3, "val_str")}
    for one, (key, value) in zip(overrides, said.items(), strict=False):
        one.tag, name = kinds[type(value)]
        one.key = f"llama.rope.scaling.{key}".encode()
        setattr(one.value, name, value)
    usual = lib.llama_model_default_params

    def params() -> Any:
        made = usual()
        made.kv_overrides = overrides
        return made

    patch.setattr(lib, "llama_model_default_params", params)


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_logits_are_those_of_a_file_that_says_so(
    kind: str, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked = _logits(gguf), _logits(gguf, f"{kind}:4")
    trained = read_model(gguf).context_length
    said = {"type": kind.encode(), "factor": 4.0, "original_context_length": trained}
    _file_says(said, monkeypatch)
    assert np.array_equal(asked, _logits(gguf))
    assert not np.array_equal(asked, plain)


def test_the_context_grows_and_what_cannot_have_it_is_refused(
    gguf: Path, pebble_built: Path
) -> None:
    model = read_model(gguf)
    longer = stretched(model, "yarn:2.5")
    assert longer.context_length == int(2.5 * model.context_length)
    assert stretched(longer, "yarn:2.5") is longer
    runner = load_runner(model, RunnerSettings(slots=1, context=10**6, rope="linear:2"))
    assert runner.capabilities.context == 2 * model.context_length
    runner.close()
    with pytest.raises(RequestError, match="name a GGUF file"):
        stretched(read_model(pebble_built / "onnx-int4"), "yarn:2")
    for wrong in ("yarn", "yarn:", "yarn:1", "yarn:65", "yarn:nan", "ntk:2", ":2"):
        with pytest.raises(RequestError, match="is not yarn:FACTOR"):
            rope_scaling(wrong)


def test_a_model_without_positions_says_so(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library(), "llama_model_rope_type", lambda _: -1)
    with pytest.raises(ModelError, match="has no rotary positions"):
        _logits(gguf, "yarn:2")


def test_a_session_is_of_its_positions(gguf: Path) -> None:
    model = read_model(gguf)
    plain, longer = (header_of(one, "f16", "") for one in (model, stretched(model, "yarn:2")))
    assert plain != longer


def test_an_encoder_is_refused(encoders: Path) -> None:
    bert = read_model(encoders / "bert.gguf")
    with pytest.raises(RequestError, match="is an encoder"):
        load_runner(bert, RunnerSettings(slots=1, threads=1, rope="yarn:2"))
