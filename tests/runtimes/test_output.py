"""Text from elsewhere on its way to a log, a terminal or a page."""

from __future__ import annotations

import io
import json
import logging
import queue
import sys
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from runtimes.output import (
    LogFormatter,
    html,
    json_text,
    markdown,
    shown_streams,
)
from runtimes.untrusted import visible
from runtimes.worker.child import RecordQueue
from tests.hostile import HOSTILE, harmful

FORGED = "x\n12:00:00  POST /v1/fake 200\r\n12:00:01  \x1b]0;PWNED\x07"


@pytest.fixture
def lines() -> Any:
    """A function that logs, and returns what a handler wrote."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LogFormatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    log = logging.Logger("tests.output")
    log.addHandler(handler)

    def tell(*what: Any, **more: Any) -> list[str]:
        log.warning(*what, **more)
        return written.getvalue().removesuffix("\n").split("\n")

    return tell


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_record_is_one_line_of_shown_characters(lines: Any, text: str) -> None:
    (line,) = lines("batch %s failed", text)
    assert not harmful(line)
    assert line.endswith(" failed")


def test_nobody_forges_a_record(lines: Any) -> None:
    (line,) = lines("model %s", FORGED)
    assert "x␊12:00:00  POST" in line


def test_tracebacks_and_output_keep_their_lines_and_forge_none(lines: Any) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        first, *rest = lines("failed", exc_info=True, extra={"output": FORGED})
    assert first.endswith("failed")
    assert rest[0] == "Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest[1:] if line != "x")
    assert not any(harmful(line) for line in rest)


def test_a_worker_sends_the_traceback_apart_from_the_message(lines: Any) -> None:
    sent: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    log = logging.Logger("tests.child")
    log.addHandler(RecordQueue(sent))
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("model %s", "a\nb")
    record = sent.get()
    assert (record.getMessage(), record.args, record.exc_info) == ("model a\nb", None, None)
    said = LogFormatter("%(message)s").format(record).split("\n")
    assert said[0] == "model a␊b"
    assert said[1].startswith("Traceback")
    assert said[-1].strip() == "ValueError: no"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_net_below_all_that_is_printed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err, pipe = Terminal(), io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    for stream in (out, pipe):
        monkeypatch.setattr(sys, "stdout", stream)
        with shown_streams():
            sys.stdout.write(text)
            sys.stderr.write(text)
            sys.stdout.writelines([text])
            assert sys.stdout.isatty() == stream.isatty()
        assert sys.stdout is stream
    assert out.getvalue() == 2 * visible(text, lines=True)
    assert not harmful(out.getvalue())
    assert not harmful(err.getvalue())
    assert pipe.getvalue() == 2 * text  # data, as it is


def test_what_rich_sends_goes_through_the_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer has a console of its own, for usage errors."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    with shown_streams():
        Console(force_terminal=True).print("[bold red]a\u202eb\x9b\u2028c", end="")
    assert out.getvalue() == "\x1b[1;31ma\\u202eb\\x9b\\u2028c\x1b[0m"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_json_means_the_same_and_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    data = {text: [text, "é€😀"]}
    written = json_text(data, 1)
    assert not harmful(written)
    assert "é€😀" in written
    assert json.loads(written) == data


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_page_shows_what_it_quotes(text: str) -> None:
    assert not harmful(markdown(text))
    assert not harmful(html(text))
    assert "<" not in html(text)
    page = MarkdownIt("gfm-like", {"html": True}).render(f"- {markdown(text)}\n")
    assert not any(tag in page for tag in ("<img", "<a ", "<script", "<em", "<code", "<h1"))
