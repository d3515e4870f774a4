"""What is committed under assets/pebble is small, complete, and has one tokenizer in two forms."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

PEBBLE = Path(__file__).resolve().parents[2] / "assets" / "pebble"
SPECIALS = ("<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")

LINES = (
    "",
    " ",
    "   x   ",
    "\t\ttabs\t",
    "\n\nlines\r\n",
    "Привет, мир! Как дела?",
    "你好，世界。こんにちは",
    "مرحبا بالعالم שלום",
    "नमस्ते दुनिया สวัสดี 안녕하세요",
    "Ünïcödé façade Łódź e\u0301 ﬁ ½ \u200b\u00a0",
    "👩‍👩‍👧‍👦🏳️‍🌈 🙂🙃",
    "def f(x):\n    return x**2  # ok\n",
    '{"a": [1, 2.5e-3], "b": "c d"}',
    "▁under▁score ▁ ▁▁",
    "<0x0A> <|use|> <|user |> < |end|>",
    "1234567890 3.14159",
    "aaaaaaaa anananana tototototo",
    "\x00\x01\x7f",
    "<|user|>\nHi<|end|>\n<|assistant|>\n",
    "a<|end|>b <s>x</s> y <unk>",
)


def varied_lines() -> list[str]:
    rng = random.Random(0)
    alphabet = "aabcdeehilnoorsttuy   .,'\"-?!0123456789\t\nÀéßЖ語😀▁{}:"
    made = ["".join(rng.choices(alphabet, k=rng.randint(1, 60))) for _ in range(600)]
    return [*LINES, *made]


def test_folder_is_complete_and_small() -> None:
    names = {path.name for path in PEBBLE.iterdir()}
    assert names >= {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "calibration.txt",
        "evaluation.txt",
        "generation_config.json",
        "graded.jsonl",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in PEBBLE.rglob("*") if path.is_file()) <= 16 * 2**20


def test_hugging_face_tokenizer_equals_sentencepiece() -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    transformers = pytest.importorskip("transformers")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(PEBBLE / "tokenizer.model"))
    fast = transformers.AutoTokenizer.from_pretrained(PEBBLE)
    special = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")

    def reference(text: str) -> list[int]:
        ids: list[int] = []
        for part in special.split(text):
            ids += [processor.piece_to_id(part)] if part in SPECIALS else processor.encode(part)
        return ids

    for line in varied_lines():
        ids = fast.encode(line, add_special_tokens=False)
        assert ids == reference(line), line
        if "▁" not in line:
            assert fast.decode(ids, skip_special_tokens=False) == line


def test_graded_set_is_well_formed() -> None:
    rows = [json.loads(line) for line in (PEBBLE / "graded.jsonl").read_text().splitlines()]
    assert len(rows) >= 320
    assert len({json.dumps(row["messages"]) for row in rows}) == len(rows)
    for row in rows:
        assert set(row) == {"task", "messages", "answer", "max_tokens"}
        assert row["answer"] == row["answer"].strip() != ""
        assert row["messages"][-1]["role"] == "user"
        assert 0 < row["max_tokens"] <= 256


def test_prompt_files_are_readable() -> None:
    for path in (PEBBLE.parent / "prompts").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len({row["id"] for row in rows}) == len(rows)
        assert all(("prompt" in row) != ("messages" in row) for row in rows)
