"""Inputs of tests: files of bytes, read as a job reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.batch.input.prompting import Prompting
from app.batch.input.source import Row, open_source
from app.batch.spec import InputOptions
from app.openai.task import Task


def write(folder: Path, data: bytes, name: str = "in.jsonl") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def read(path: Path | str, **options: Any) -> list[Row]:
    with open_source(str(path), Prompting(InputOptions(**options))) as source:
        return list(source.rows())


def codes(rows: list[Row]) -> list[str | None]:
    """The code of each row's problem; None for a row that asks something."""
    return [row.problem and row.problem.code for row in rows]


def prompts(*texts: str) -> list[Task]:
    """What rows with these prompts ask."""
    return [Task((), (text,)) for text in texts]


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
CASES = json.loads(Path(__file__).with_name("rows.json").read_text("utf-8"))


def request(url: str = CHAT, **body: Any) -> dict[str, Any]:
    """A line of an OpenAI batch."""
    prompt = {"prompt": "hi"} if url == COMPLETIONS else {"messages": USER}
    whole = {"model": "any", **prompt, **body}
    return {"custom_id": "a", "method": "POST", "url": url, "body": whole}


# Rows that are wrong in every way that is known to happen, with the code and words of their errors.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    *CASES["refused rows"],
    *((request(**body), code, words) for body, code, words in CASES["refused bodies"]),
    *(({**request(), **more}, code, words) for more, code, words in CASES["refused envelopes"]),
    (request(temperature=10**400), "invalid_value", "temperature"),
    (request(COMPLETIONS, prompt=[]), "wrong_type", "prompt must be"),
    (request(COMPLETIONS, prompt=["a", []]), "wrong_type", "prompt.1 must be"),
    (request(COMPLETIONS, prompt=["a", " "]), "empty_prompt", "blank"),
    (request(COMPLETIONS, prompt=["a"] * 257), "invalid_value", "257 prompts"),
    (request(COMPLETIONS, priority="low"), "unsupported_parameter", "priority is not supported"),
]
# Lines that are no rows, with the code of their errors.
BAD_LINES = {
    b"{": "invalid_json",
    b'{"prompt":"x"} trailing': "invalid_json",
    b'{"prompt":NaN}': "invalid_json",
    b'{"prompt":"x","score":-Infinity}': "invalid_json",
    b'{"prompt":"x","score":1e999}': "invalid_json",
    b'{"prompt":"a\x00b"}': "invalid_json",
    b"\x00\x00\x00": "invalid_json",
    b'{"n":' + b"9" * 5000 + b"}": "invalid_json",
    b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}": "invalid_json",
    b'{"prompt":"\xff"}': "invalid_utf8",
    b'"just text"': "wrong_type",
    b"null": "wrong_type",
    b"[1]": "wrong_type",
    b'{"prompt":"\\ud800"}': "invalid_unicode",
}
