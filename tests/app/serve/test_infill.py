"""``suffix`` of /v1/completions: what stands between two texts."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI
from tokenizers import Tokenizer

from runtimes.chat import encode_text
from runtimes.models.registry import tokenizer_of
from runtimes.onnx.tokenizer import OnnxTokenizer
from tests.app.serve.conftest import Running, running

MARKS = (300, 301, 302)  # any tokens of Pebble


def marked(source: Path, made: Path) -> Path:
    """A GGUF file whose metadata name the tokens of filling in. The rest of its header is moved by
    a multiple of what tensors are aligned to."""
    data = source.read_bytes()
    keys = b""
    for name, token in zip(("pre", "suf", "mid"), MARKS, strict=True):
        key = f"tokenizer.ggml.fim_{name}_token_id".encode()
        keys += struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, token)
    key = b"general.padding"
    keys += struct.pack("<Q", len(key)) + key + struct.pack("<I", 8)
    text = b" " * (-(len(keys) + 8) % 32)
    keys += struct.pack("<Q", len(text)) + text
    (count,) = struct.unpack_from("<Q", data, 16)
    made.write_bytes(data[:16] + struct.pack("<Q", count + 4) + keys + data[24:])
    return made


@pytest.fixture(scope="module")
def code(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file = marked(gguf_file, tmp_path_factory.mktemp("infill") / "code.gguf")
    with running({"code": file}, slots=2) as found:
        yield found


def test_what_is_between_is_asked_for(code: Running) -> None:
    client = code.client()
    said = client.completions.create(model="code", prompt="def f(", suffix="):\n", max_tokens=6)
    engine = code.engine("code")
    begin = engine.encode("")
    before, after, middle = MARKS

    def plain(text: str) -> list[int]:
        return engine.encode(text)[len(begin) :]

    ids = [*begin, before, *plain("def f("), after, *plain("):\n"), middle]
    assert engine.encode("def f(", "):\n") == ids
    same = client.completions.create(model="code", prompt=ids, max_tokens=6)
    assert said.choices[0].text == same.choices[0].text
    assert said.usage is not None
    assert said.usage.prompt_tokens == len(ids)
    several = client.completions.create(
        model="code", prompt=["def f(", ""], suffix="):\n", max_tokens=6
    )
    assert several.choices[0].text == said.choices[0].text
    assert several.usage is not None
    assert several.usage.prompt_tokens == 2 * len(ids) - len(plain("def f("))
    # A file may quote what ends an answer: there it is text.
    tokenizer = tokenizer_of(engine.model)
    assert tokenizer.eos_token
    quoted = encode_text(tokenizer, "a", f"b{tokenizer.eos_token}c")
    assert not tokenizer.eos_ids & set(quoted)
    assert tokenizer.eos_ids & set(encode_text(tokenizer, tokenizer.eos_token))


def test_who_cannot_says_so(code: Running, client: OpenAI) -> None:
    for model in ("pebble", "pebble-onnx"):
        with pytest.raises(BadRequestError, match="no tokens that mark what is to be filled in"):
            client.completions.create(model=model, prompt="a", suffix="b", max_tokens=1)
    same = [
        client.completions.create(model="pebble", prompt="One, two,", max_tokens=4, **more)
        for more in ({}, {"suffix": ""})
    ]
    assert same[0].choices[0].text == same[1].choices[0].text
    own = code.client()
    for body, why in (
        ({"prompt": [5, 6], "suffix": "b"}, "suffix must be a text, and so must the prompt"),
        ({"prompt": "a", "suffix": 5}, "suffix must be a text"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "echo and suffix"),
        ({"prompt": "a", "suffix": "b " * 100_000}, "context"),
    ):
        with pytest.raises(BadRequestError, match=why):
            own.completions.create(model="code", max_tokens=1, **body)


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        (
            "<\uff5cfim\u2581begin\uff5c>",
            "<\uff5cfim\u2581hole\uff5c>",
            "<\uff5cfim\u2581end\uff5c>",
        ),
    ],
)
def test_onnx_finds_them_by_name(names: tuple[str, ...], onnx_folder: Path, tmp_path: Path) -> None:
    for file in onnx_folder.glob("*.json"):
        shutil.copy(file, tmp_path)
    assert OnnxTokenizer(tmp_path).infill is None
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(list(names))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert OnnxTokenizer(tmp_path).infill == (size, size + 1, size + 2)
