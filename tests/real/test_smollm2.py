"""What users do with a model that somebody has trained and published: SmolLM2-135M-Instruct."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quantize.manifest import Manifest, load_manifest
from quantize.quality.text import BUNDLED, WINDOW
from runtimes.engine.engine import Engine
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.quantize.conftest import run_quantize

QUESTIONS = (
    "What is gravity?",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
    "Translate 'good morning' into Spanish.",
    "What is 1234 + 5678?",
    "Name three primary colours.",
)
TOKENS = 24
CONTEXT = 512


def run(program: str, *arguments: object) -> str:
    """What a Python program writes to stdout, in a process of its own."""
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


_PEER = """
import json, sys
from llama_cpp import Llama
path, questions, tokens, context = sys.argv[1], *map(json.loads, sys.argv[2:])
settings = {"n_ctx": context, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
model = Llama(path, verbose=False, **settings)
texts = []
for question in questions:
    model.reset()  # else it would begin with what the last question left
    messages = [{"role": "user", "content": question}]
    done = model.create_chat_completion(messages, temperature=0, max_tokens=tokens)
    texts.append(done["choices"][0]["message"]["content"])
print(json.dumps(texts))
"""


def test_greedy_texts_are_those_of_llama_cpp_itself(published: Path) -> None:
    expected = json.loads(run(_PEER, published, json.dumps(QUESTIONS), TOKENS, CONTEXT))
    settings = RunnerSettings(slots=1, context=CONTEXT, threads=1)
    with Engine.load(published, settings, SchedulerSettings(prefix_cache=False)) as engine:
        asked = [engine.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
        done = engine.generate(asked, SamplingParams(max_tokens=TOKENS))
    assert [one.text for one in done] == expected
    assert expected[0].startswith("Gravity is a ")


@pytest.fixture(scope="module")
def quantized(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, str]:
    """The checkpoint as q8_0, compared with the float model over one window; the table."""
    out = tmp_path_factory.mktemp("quantized")
    limit = WINDOW - WINDOW // 2 - 1
    done = run_quantize(checkpoint, "--recipe", "q8_0", "--limit", limit, "--out", out)
    return load_manifest(out), done.stdout


def test_a_built_file_is_the_checkpoint(quantized: tuple[Manifest, str]) -> None:
    manifest, table = quantized
    (file,) = manifest.files
    assert manifest.model.parameters == pytest.approx(134.5e6, rel=0.001)
    assert file.token_parity.lines > 400
    assert file.token_parity.differences == 0
    assert 0 < file.fidelity.kl_mean < 0.01
    assert file.fidelity.same_top > 0.9
    perplexities = (manifest.model.perplexity.value, file.fidelity.perplexity.value)
    assert perplexities[1] == pytest.approx(perplexities[0], rel=0.02)
    assert min(file.speed.prefill_tps, file.speed.decode_tps_1, file.speed.decode_tps_16) > 0
    for shown in (*(f"{value:.2f}" for value in perplexities), f"{file.bytes / 1e6:.0f}"):
        assert shown in table


_PERPLEXITY = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, text, window = sys.argv[1], sys.argv[2], int(sys.argv[3])
ids = AutoTokenizer.from_pretrained(folder)(open(text, encoding="utf-8").read()).input_ids[:window]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
with torch.inference_mode():
    logits = model(torch.tensor([ids])).logits[0]
half = window // 2
loss = torch.nn.functional.cross_entropy(logits[half:-1], torch.tensor(ids[half + 1:]))
print(float(loss.exp()))
"""


def test_perplexity_is_that_of_transformers(
    checkpoint: Path, quantized: tuple[Manifest, str]
) -> None:
    found = quantized[0].model.perplexity
    assert found.tokens == WINDOW - WINDOW // 2 - 1
    expected = float(run(_PERPLEXITY, checkpoint, BUNDLED, WINDOW))
    assert found.value == pytest.approx(expected, rel=1e-4)
