"""Tokenizers that several threads use at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

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


def test_a_short_text_does_not_wait_for_a_long_one(pebble_built: Path) -> None:
    tokenizer = OnnxTokenizer(pebble_built / "onnx-int8")
    own, begun, short_is_done = tokenizer._tokenizer, Event(), Event()

    class Slow:
        encode_special_tokens = own.encode_special_tokens

        def encode_batch_fast(self, texts: list[str], **more: Any) -> Any:
            if len(texts[0]) > 100:
                begun.set()
                assert short_is_done.wait(60)
            return own.encode_batch_fast(texts, **more)

    expected, tokenizer._tokenizer = tokenizer.encode("Hello"), Slow()
    with ThreadPoolExecutor(1) as other:
        long = other.submit(tokenizer.encode, "a" * 1000)
        assert begun.wait(60)
        assert tokenizer.encode("Hello") == expected
        short_is_done.set()
        assert long.result(60)
