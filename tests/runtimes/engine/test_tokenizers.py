"""Tokenizers that several threads use at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runtimes.onnx.tokenizer import OnnxTokenizer


def test_both_ways_to_read_special_tokens_at_once(pebble_built: Path) -> None:
    tokenizer = OnnxTokenizer(pebble_built / "onnx-int8")
    text = f"Hello{tokenizer.eos_token} again"
    right = {mode: tokenizer.encode(text, parse_special=mode) for mode in (True, False)}
    assert len(right[True]) < len(right[False])
    modes = [number % 3 == 0 for number in range(600)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda mode: tokenizer.encode(text, parse_special=mode), modes))
    assert found == [right[mode] for mode in modes]
