"""Encoders that llama.cpp gives a cache all the same, as it does those of Llama and Qwen."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from runtimes.llamacpp.encoder import LlamaEncoder
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings


def test_a_text_is_embedded_as_if_none_came_before(gguf: Path) -> None:
    settings = RunnerSettings(context=64, threads=1)
    with contextlib.closing(LlamaEncoder(read_model(gguf), settings)) as encoder:
        first, other = (encoder.embed(range(begin, begin + 9)) for begin in (20, 40))
        assert np.array_equal(encoder.embed(range(20, 29)), first)
        assert not np.allclose(first, other)
