"""Built files against the float model, each on its own runtime."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from quantize.children import run_child
from quantize.errors import QualityError
from quantize.fromjson import from_json
from quantize.manifest import Fidelity, FileSpeeds
from quantize.options import SourceOptions
from quantize.quality import built_child, float_child, peak
from quantize.quality.fidelity import FloatReference, load_reference, require_quality
from quantize.quality.peak import peak_resident
from quantize.quality.text import WINDOW, read_text
from quantize.recipes import find_recipe
from quantize.resolve import resolve
from quantize.source import open_source
from runtimes.models.gguf import read_header
from tests.quantize.hub.hubs import Notes
from tests.quantize.shapes import SHAPES, make_random_model

LIMIT = 600


@pytest.fixture(scope="module")
def reference(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> FloatReference:
    source = open_source(str(pebble))
    heard = Notes()
    work = tmp_path_factory.mktemp("reference")
    call = partial(float_child.refer, source, work / "out", None, LIMIT)
    run_child(call, what="the float model", work=work, progress=heard, torch=True)
    assert heard.moved[-1] == (3, 3, "windows")
    assert "loading the float model" in heard.steps
    return load_reference(work / "out")


def fidelity(path: Path, reference: FloatReference, work: Path) -> Fidelity:
    return run_child(partial(built_child.fidelity, path, reference), what="comparing", work=work)


def test_the_float_model_is_transformers(pebble: Path, reference: FloatReference):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pebble)
    network = AutoModelForCausalLM.from_pretrained(pebble, dtype=torch.float32).eval()
    ids = tokenizer(read_text(None).content).input_ids
    nll, likeliest = [], []
    for start in (0, WINDOW, 2 * WINDOW):
        window = torch.tensor([[tokenizer.bos_token_id, *ids[start + 1 : start + WINDOW]]])
        with torch.inference_mode():
            logits = network(window).logits[0].double()
        steps = range(WINDOW // 2, WINDOW - 1)
        nll += [-logits[p].log_softmax(0)[window[0, p + 1]].item() for p in steps]
        likeliest += [logits[p].argmax().item() for p in steps]
    assert reference.perplexity.tokens == LIMIT
    assert reference.perplexity.value == pytest.approx(np.exp(np.mean(nll[:LIMIT])), rel=1e-4)
    tops = np.concatenate([tops for _, tops in reference.blocks()])
    assert (tops == likeliest[:LIMIT]).mean() > 0.998


@pytest.mark.parametrize(("recipe", "most"), [("q8_0", 0.002), ("onnx-int4", 0.08)])
def test_a_good_file_is_near_the_float_model(
    recipe: str, most: float, pebble_built: Path, reference: FloatReference, tmp_path: Path
):
    found = fidelity(resolve(pebble_built, recipe=recipe), reference, tmp_path)
    require_quality(find_recipe(recipe), found)
    assert found.kl_mean < most
    assert 0 < found.kl_error < found.kl_mean < found.kl_p99
    assert found.perplexity.value == pytest.approx(reference.perplexity.value, rel=0.2)
    assert found.perplexity.tokens == LIMIT
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_damaged_scales_is_caught(
    pebble_built: Path, reference: FloatReference, tmp_path: Path
):
    """It loads, has the right size and the right tokens, and answers: only measuring shows it."""
    path = tmp_path / "scrambled.gguf"
    shutil.copy(resolve(pebble_built, recipe="q8_0"), path)
    header, dice = read_header(path), np.random.default_rng(0)
    for tensor in header.tensors:
        if tensor.type_name == "Q8_0":  # blocks of an f16 scale and 32 signed bytes
            shape, offset = (tensor.nbytes // 34, 34), header.data_begins + tensor.offset
            blocks = np.memmap(path, np.uint8, "r+", offset=offset, shape=shape)
            blocks[:, :2] = dice.permutation(blocks[:, :2])
            blocks.flush()
    found = fidelity(path, reference, tmp_path)
    with pytest.raises(QualityError, match=r"(?s)q8_0 is too far .*limit is 0\.01.*--measure-text"):
        require_quality(find_recipe("q8_0"), found)


def test_a_gguf_source_is_its_own_float_model(pebble_built: Path, tmp_path: Path):
    path = resolve(pebble_built, recipe="q8_0")
    source = open_source(SourceOptions(str(path), allow_requantize=True))
    call = partial(float_child.refer, source, tmp_path / "out", None, 300)
    run_child(call, what="running it", work=tmp_path)
    itself = load_reference(tmp_path / "out")
    found = fidelity(path, itself, tmp_path)
    assert found.kl_mean < 1e-6
    assert found.same_top == 1
    assert found.perplexity.value == pytest.approx(itself.perplexity.value, rel=1e-6)


def test_weights_kept_in_16_bits_give_the_logits_of_single_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import torch
    from transformers import AutoModelForCausalLM

    from quantize.quality.float_child import load_network

    monkeypatch.setattr(float_child, "_SMALL", 1000)  # all matrices of so small a model are small
    make_random_model(tmp_path / "wide", SHAPES["gemma3"])
    narrow = AutoModelForCausalLM.from_pretrained(tmp_path / "wide", dtype=torch.bfloat16)
    narrow.save_pretrained(tmp_path / "model")
    source = replace(open_source(str(tmp_path / "wide")), folder=tmp_path / "model")
    ids = torch.arange(64)[None] + 5
    logits = {}
    for wide in (True, False):
        network = load_network(source, wide=wide)
        with torch.inference_mode():
            logits[wide] = [network(ids).logits for _ in range(2)]
        held = {parameter.dtype for parameter in network.parameters()}
        assert (torch.bfloat16 in held) is not wide
    assert logits[False][0].dtype == torch.float32
    torch.testing.assert_close(logits[False][0], logits[True][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[False][0], logits[False][1], rtol=0, atol=0)
    with torch.inference_mode():  # single precision is told from the checkpoint's own
        assert (narrow.eval()(ids).logits.float() - logits[True][0]).abs().max() > 1e-3


def test_speed_has_every_figure(pebble_built: Path, tmp_path: Path):
    path = resolve(pebble_built, recipe="q8_0")
    speed = run_child(partial(built_child.speed, path), what="measuring", work=tmp_path)
    many, one = (speed.ranges[f"decode_tps_{rows}"][1] for rows in (16, 1))
    assert min(many, one) > 0  # not which is more: others may take the processor in one of them
    assert speed.prefill_tps_16 > 0
    assert 0 < speed.load_s < 60
    assert path.stat().st_size < speed.peak_bytes < 2e9
    assert speed.ranges.keys() == {"prefill_tps", "decode_tps_1", "decode_tps_16"}
    for name, (low, high) in speed.ranges.items():
        assert 0 < low <= getattr(speed, name) <= high
    assert 0 <= speed.others <= 1
    assert from_json(FileSpeeds, json.loads(json.dumps(dataclasses.asdict(speed)))) == speed


_CHILD = "x = bytearray(120_000_000); del x; print('freed', flush=True); input()"


def test_memory_that_was_given_back_counts():
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        found = peak_resident(child.pid)
        now = psutil.Process(child.pid).memory_info().rss
        child.communicate(b"\n")
    assert now < 100_000_000 < 120_000_000 <= found < 200_000_000
    assert peak_resident(child.pid) == 0  # it is gone


def test_without_the_kernels_peak_the_largest_size_seen_counts(monkeypatch):
    monkeypatch.setattr(peak, "_PEAK", re.compile("no such line"))
    first = peak_resident(os.getpid())
    assert abs(first / psutil.Process().memory_info().rss - 1) < 0.5
