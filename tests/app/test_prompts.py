"""Prompts from arguments and pipes, and what becomes of bytes that are no text."""

from __future__ import annotations

import io

import pytest

from app.openai.prepare import conversation
from app.prompts import PromptStyle, clean_argument, read_prompt, read_text
from runtimes.errors import RequestError

USER = {"role": "user", "content": "hi"}


def _pipe(text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = None if text is None else io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr("sys.stdin", piped)


@pytest.mark.parametrize(
    ("argument", "piped", "prompt"),
    [
        ("Summarize:", "the text", "Summarize:\n\nthe text"),
        ("only this", None, "only this"),
        ("only this", " \n", "only this"),
        (None, "piped", "piped"),
        ("", "piped", "piped"),
    ],
)
def test_a_pipe_follows_the_argument(
    argument: str | None, piped: str | None, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pipe(piped, monkeypatch)
    assert read_prompt(argument, "ingot run MODEL", print) == prompt


@pytest.mark.parametrize(("argument", "piped"), [(None, None), ("", None), (" ", "\n\n")])
def test_no_prompt_at_all(
    argument: str | None, piped: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pipe(piped, monkeypatch)
    with pytest.raises(RequestError, match=r'\(ingot run MODEL "What'):
        read_prompt(argument, "ingot run MODEL", print)


@pytest.mark.parametrize(
    ("data", "text", "warnings"),
    [
        (b"line\n", "line", 0),
        (b"line\r\n", "line", 0),
        (b"two\n\n", "two\n", 0),
        (b"\xef\xbb\xbfmarked", "marked", 0),
        (b"caf\xc3\xa9 \xef\xbf\xbd", "café \ufffd", 0),
        (b"a\xffb\n", "a\ufffdb", 1),
        (b"", "", 0),
    ],
)
def test_read_text(data: bytes, text: str, warnings: int) -> None:
    told: list[str] = []
    assert read_text(io.BytesIO(data), told.append) == text
    assert len(told) == warnings


def test_an_argument_that_is_no_utf8() -> None:
    told: list[str] = []
    assert clean_argument(b"caf\xe9".decode("utf-8", "surrogateescape"), told.append) == "caf\ufffd"
    assert "byte 4" in told[0]
    assert clean_argument("café", told.append) == "café"
    assert clean_argument(None, told.append) is None
    assert len(told) == 1


def test_system_message_goes_first_unless_there_is_one() -> None:
    style = PromptStyle(system="Be brief.")
    assert conversation(style, [USER])[0] == {"role": "system", "content": "Be brief."}
    own = [{"role": "system", "content": "Be long."}, USER]
    assert conversation(style, own) == own
    assert conversation(PromptStyle(), [USER]) == [USER]


def test_raw_text_has_no_place_for_a_system_message() -> None:
    with pytest.raises(RequestError, match="--system"):
        PromptStyle(system="x", raw=True)
