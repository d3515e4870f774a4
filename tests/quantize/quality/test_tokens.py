"""The token gate notices what is wrong, and the two known traps of conversion are dealt with."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from pathlib import Path

import pytest

from quantize.errors import TokenMismatchError
from quantize.manifest import load_manifest
from quantize.quality.tokens import (
    Reference,
    compare_built,
    parity_conversations,
    parity_lines,
    read_reference,
    require_parity,
)
from quantize.source import open_source
from tests.quantize.conftest import RECIPES, Built, run_quantize


@pytest.fixture(scope="module")
def reference(sources: dict[str, Path]) -> Reference:
    return read_reference(open_source(str(sources["qwen2"])))


def test_the_lines_are_many_and_varied():
    lines = parity_lines(["<|im_end|>"])
    assert len(lines) >= 300
    assert len(set(lines)) == len(lines)
    text = "".join(lines)
    scripts = {unicodedata.name(c, "?").split()[0] for c in text if c.isalpha()}
    wanted = {"LATIN", "CYRILLIC", "GREEK", "CJK", "HIRAGANA", "HANGUL", "ARABIC", "HEBREW"}
    assert wanted | {"DEVANAGARI", "THAI", "KHMER", "TAMIL"} <= scripts
    for piece in ("\u200d", "\t\t", "    ", "\n\n", "\r\n", "\u0301", "\x00", "a<|im_end|>b"):
        assert piece in text
    assert any(line.startswith(" ") for line in lines)
    assert any(line.endswith(" ") for line in lines)
    assert parity_lines(["<|im_end|>"]) == lines
    assert any(len(talk) > 2 for talk in parity_conversations())


def test_every_build_splits_text_as_the_original_does(qwen2: Built):
    """Its pre-tokenizer is found by comparing: GPT-2's pattern, tried first, splits digits in
    another way than Qwen 2's."""
    manifest = load_manifest(qwen2.out)
    assert len(manifest.files) == len(RECIPES["qwen2"].split(","))
    for entry in manifest.files:
        assert entry.token_parity.differences == 0
        assert entry.token_parity.lines >= 300
    note = re.search(r"pre-tokenizer '(.+)' chosen by comparing tokens: 0 of (\d+)", qwen2.stderr)
    assert note[1] != "gpt-2"
    assert int(note[2]) >= 300
    assert any("Unicode form NFC" in note for note in manifest.entry("q8_0").notes)


def test_a_broken_tokenizer_is_noticed(qwen2: Built, reference: Reference, tmp_path: Path):
    folder = Path(shutil.copytree(qwen2.out / "onnx-int8", tmp_path / "onnx-int8"))
    assert compare_built(folder, reference, tmp_path).differences == ()
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    state["model"]["merges"] = state["model"]["merges"][:-40]
    path.write_text(json.dumps(state))
    comparison = compare_built(folder, reference, tmp_path)
    assert 0 < comparison.parity.differences < comparison.parity.lines
    with pytest.raises(TokenMismatchError) as error:
        require_parity(comparison, "onnx-int8")
    first = comparison.differences[0]
    assert repr(first.text) in str(error.value)
    at = next(
        i for i, (a, b) in enumerate(zip(first.original, first.built, strict=False)) if a != b
    )
    said = str(error.value)
    for ids, texts in zip((first.original, first.built), comparison.texts, strict=True):
        whole = texts.get(str(ids[at]))
        assert (f"{ids[at]} {whole!r}" if whole else str(ids[at])) in said
    assert f", token {at + 1}\n" in said


def test_a_changed_chat_template_is_noticed(qwen2: Built, reference: Reference, tmp_path: Path):
    folder = Path(shutil.copytree(qwen2.out / "onnx-int8", tmp_path / "onnx-int8"))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("'\\n'", "' '"))
    comparison = compare_built(folder, reference, tmp_path)
    assert comparison.parity.differences == len(reference.chats)
    assert all(difference.text.startswith("chat:") for difference in comparison.differences)


def test_what_no_candidate_matches_fails_unless_allowed(sources: dict[str, Path], tmp_path: Path):
    """llama.cpp has no lower-casing normalizer."""
    model = Path(shutil.copytree(sources["gemma3"], tmp_path / "lower"))
    path = model / "tokenizer.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "normalizer": {"type": "Lowercase"}}))
    command = (model, "--recipe", "q8_0,onnx-int8", "--no-measure")
    failed = run_quantize(*command, check=False)
    assert failed.returncode == 3
    assert "test lines give other tokens" in failed.stderr
    assert "'The quick brown fox" in failed.stderr
    assert ", token 1\n" in failed.stderr
    assert re.search(r"original: \d+ '[a-z]+'", failed.stderr)
    assert "splits it by " in failed.stderr
    # The other format has tokenizer.json itself, and its file is there.
    assert "1 of 2 files could not be finished; the others are there.\nq8_0: " in failed.stderr
    out = tmp_path / "lower-built"
    assert [entry.recipe for entry in load_manifest(out).files] == ["onnx-int8"]
    assert sorted(p.name for p in out.glob("*q8_0*")) == []
    assert "onnx-int8" in (out / "README.md").read_text(encoding="utf-8")
    again = run_quantize(*command, "--allow-token-mismatch")
    assert "onnx-int8 is already built" in again.stderr
    assert "converting to GGUF, half precision: an earlier run has done this" in again.stderr
    entry = load_manifest(tmp_path / "lower-built").entry("q8_0")
    assert entry.token_parity.differences > 50
