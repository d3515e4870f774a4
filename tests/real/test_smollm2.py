"""What users do with a model that somebody has trained and published: SmolLM2-135M-Instruct."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quantize.manifest import Manifest, load_manifest
from quantize.quality.text import BUNDLED, WINDOW
from runtimes.engine.engine import Engine
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.app import stopping
from tests.quantize.conftest import run_quantize
from tests.support import read_rows

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


def test_a_batch_that_is_killed_again_and_again(
    ingot: Any, published: Path, tmp_path: Path
) -> None:
    rows, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    count, kills = 12, 2
    lines = ({"id": i, "prompt": f"{QUESTIONS[i % 6]} ({i})"} for i in range(count))
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--max-tokens", "6", "--slots", "4", "--threads", "1", "--json"]
    flags.append("--reproducible")
    command = ["batch", rows, out, "--model", published, *flags]
    held = stopping.after_rows(tmp_path / "held", count // (kills + 1))
    for _ in range(kills):
        process = ingot.start(*command, env=held)
        stopping.wait_stopped(process)
        process.kill()
        process.communicate()
    done = ingot(*command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["reused"] == kills * count // (kills + 1)
    assert [record["id"] for record in read_rows(out)] == list(range(count))
    journal = read_rows(out.with_name(out.name + ".journal.jsonl"))
    assert Counter(line["index"] for line in journal if "index" in line) == Counter(range(count))
    calm = tmp_path / "calm.jsonl"
    assert ingot("batch", rows, calm, "--model", published, *flags).returncode == 0
    assert calm.read_bytes() == out.read_bytes()
