"""What users do with a model that somebody has trained and published: SmolLM2-135M-Instruct."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from quantize.children import run_child
from quantize.manifest import load_manifest
from quantize.quality.text import WINDOW
from runtimes.engine.engine import Engine
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.quantize.conftest import run_quantize

QUESTIONS = ("What is gravity?", "How many legs does a spider have?", "What is 1234 + 5678?")
TOKENS = 16
CONTEXT = 256


def answered(path: Path) -> list[str]:
    """By llama-cpp-python's own loop. Runs in a child process."""
    from llama_cpp import Llama

    settings = {"n_ctx": CONTEXT, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
    model, texts = Llama(str(path), verbose=False, **settings), []
    for question in QUESTIONS:
        model.reset()  # else it would begin with what the last question left
        messages = [{"role": "user", "content": question}]
        done = model.create_chat_completion(messages, temperature=0, max_tokens=TOKENS)
        texts.append(done["choices"][0]["message"]["content"])
    return texts


def test_greedy_texts_are_those_of_llama_cpp_itself(published: Path, tmp_path: Path) -> None:
    expected = run_child(partial(answered, published), "answering", tmp_path)
    settings = RunnerSettings(slots=1, context=CONTEXT, threads=1)
    with Engine.load(published, settings, SchedulerSettings(prefix_cache=False)) as engine:
        asked = [engine.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
        done = engine.generate(asked, SamplingParams(max_tokens=TOKENS))
    assert [one.text for one in done] == expected
    assert expected[0].startswith("Gravity is a ")


def test_a_built_file_is_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """As q8_0, compared with the float model over one window."""
    limit = WINDOW - WINDOW // 2 - 1
    done = run_quantize(checkpoint, "--recipe", "q8_0", "--limit", limit, "--out", tmp_path)
    manifest, table = load_manifest(tmp_path), done.stdout
    (file,) = manifest.files
    assert manifest.model.parameters == pytest.approx(134.5e6, rel=0.001)
    assert file.token_parity.lines > 400
    assert file.token_parity.differences == 0
    assert 0 < file.fidelity.kl_mean < 0.01
    assert file.fidelity.same_top > 0.9
    perplexities = (manifest.model.perplexity.value, file.fidelity.perplexity.value)
    # Of so few tokens it depends on the last digits: 1.2, 1.5 and 2.2% by three libraries' kernels.
    assert perplexities[1] == pytest.approx(perplexities[0], rel=0.04)
    assert min(file.speed.prefill_tps, file.speed.decode_tps_1, file.speed.decode_tps_16) > 0
    for shown in (*(f"{value:.4g}" for value in perplexities), f"{file.bytes / 1e6:.0f}"):
        assert shown in table
