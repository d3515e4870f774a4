"""`ingot run` as users type it, on Pebble's files."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from runtimes.llamacpp.backend import BACKEND as LLAMACPP

QUESTION = "What is the capital of France?"
STORY = "Tell me a story about a fox."
# One thread: threads that wait for each other crawl where the processor is shared.
ONE = ["--threads", "1"]
# An answer that takes minutes: no end comes before its last token, and older ones make room.
ENDLESS = ["--min-tokens", "1000000", "--max-tokens", "1000000", "--context-shift", *ONE]


def test_every_file_answers(ingot: Any, pebble_file: Path) -> None:
    done = ingot("run", pebble_file, QUESTION)
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert done.stdout.endswith("\n")
    assert "\x1b" not in done.stdout + done.stderr  # neither is a terminal
    for figure in ("first token", "prefill", "tok/s", pebble_file.name):
        assert figure in done.stderr


def test_json_and_the_choice_of_a_file(command: Any, pebble_built: Path) -> None:
    done = command("run", pebble_built, QUESTION, "--json", "--quiet", "--recipe", "q8_0", *ONE)
    assert done.returncode == 0
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert set(report) == {"text", "finish_reason", "usage", "timings", "model", "runtime"}
    assert "Paris" in report["text"]
    assert report["finish_reason"] == "stop"
    usage = report["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < report["timings"]["ttft_s"] <= report["timings"]["total_s"]
    assert report["runtime"] == "llamacpp"
    assert report["model"]["file"].endswith(".gguf")

    named = Path(report["model"]["file"]).name
    again = json.loads(
        command("run", pebble_built, QUESTION, "--json", "--file", named, *ONE).stdout
    )
    assert again["text"] == report["text"]
    other = json.loads(
        command("run", pebble_built, QUESTION, "--json", "--recipe", "onnx-int8", *ONE).stdout
    )
    assert other["runtime"] == "onnx"


def test_a_draft_is_named_and_counted(command: Any, pebble_built: Path) -> None:
    asked = ("run", pebble_built, STORY, "--recipe", "q8_0", *ONE)
    plain = command(*asked, "--quiet")
    done = command(*asked, "--draft", pebble_built / "pebble-q4_k_m.gguf")
    assert done.returncode == 0
    assert done.stdout == plain.stdout
    assert "pebble-q8_0.gguf with the draft pebble-q4_k_m.gguf on llamacpp" in done.stderr


def test_a_draft_that_cannot_be_is_refused(
    command: Any, pebble_built: Path, tmp_path: Path
) -> None:
    asked = ("run", pebble_built, QUESTION, "--recipe", "q8_0", *ONE, "--draft")
    missing = command(*asked, tmp_path / "none.gguf")
    assert missing.returncode == 3
    assert "--draft: " in missing.stderr
    assert "none.gguf" in missing.stderr
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((pebble_built / "pebble-q8_0.gguf").read_bytes()[:200_000])
    truncated = command(*asked, cut)
    assert truncated.returncode == 3
    assert "cut.gguf" in truncated.stderr
    foreign = command(*asked, LLAMACPP.selftest)
    assert foreign.returncode == 3
    assert "cannot be the draft of" in foreign.stderr
    assert all("Traceback" not in one.stderr for one in (missing, truncated, foreign))


def test_a_piped_prompt_follows_the_argument(command: Any, gguf_file: Path) -> None:
    def tokens(*arguments: str, stdin: bytes | None) -> tuple[str, int]:
        done = command(
            "run", gguf_file, *arguments, "--json", "--max-tokens", "8", *ONE, stdin=stdin
        )
        report = json.loads(done.stdout)
        return report["text"], report["usage"]["prompt_tokens"]

    whole = tokens("Repeat:\n\none two", stdin=None)
    assert tokens("Repeat:", stdin=b"one two\n") == whole
    assert tokens(stdin=b"\xef\xbb\xbfRepeat:\r\n\r\none two".replace(b"\r", b"")) == whole


def test_bytes_that_are_no_text(command: Any, gguf_file: Path) -> None:
    done = command("run", gguf_file, "--max-tokens", "4", *ONE, stdin=b"caf\xe9 \x00 end")
    assert done.returncode == 0
    assert "byte 4" in done.stderr


def test_an_empty_answer(command: Any, gguf_file: Path) -> None:
    first = command("run", gguf_file, QUESTION, "--quiet", "--max-tokens", "1", *ONE).stdout
    done = command("run", gguf_file, QUESTION, "--quiet", "--stop", first.strip()[0], *ONE)
    assert done.returncode == 0
    assert done.stdout.strip() == ""
    assert done.stdout.endswith("\n")


def test_raw_leaves_the_template_out(command: Any, gguf_file: Path) -> None:
    def prompt_tokens(*flags: str) -> int:
        done = command("run", gguf_file, "Hello", "--json", "--max-tokens", "1", *ONE, *flags)
        return int(json.loads(done.stdout)["usage"]["prompt_tokens"])

    assert prompt_tokens("--raw") < prompt_tokens()


def test_a_full_context_ends_the_answer_or_is_shifted(command: Any, pebble_built: Path) -> None:
    long = [STORY, "--context", "40", "--min-tokens", "60", "--max-tokens", "60", "--json", *ONE]
    asked = ["run", pebble_built, *long, "--recipe"]
    full = json.loads(command(*asked, "q8_0").stdout)
    assert full["finish_reason"] == "context"
    shifted = json.loads(command(*asked, "q8_0", "--context-shift").stdout)
    assert (shifted["finish_reason"], shifted["usage"]["completion_tokens"]) == ("length", 60)
    assert shifted["text"].startswith(full["text"])
    refused = command(*asked, "onnx-int8", "--context-shift")
    assert refused.returncode == 2
    assert "ONNX" in refused.stderr


def test_a_closed_pipe(ingot: Any, gguf_file: Path) -> None:
    process = ingot.start("run", gguf_file, STORY, *ENDLESS)
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == 141
    assert b"Traceback" not in process.stderr.read()


def test_control_c_keeps_what_there_is(ingot: Any, gguf_file: Path) -> None:
    process = ingot.start("run", gguf_file, "Once upon a time", "--raw", *ENDLESS)
    start = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert (start + out).decode().endswith("\n")
    assert b"Traceback" not in err
    assert b"Aborted" not in err
    assert b"ended by cancelled" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{gguf}"], 2, "there is no prompt"),
        ([], 2, "MODEL"),
        (["{gguf}", "x", "--bogus"], 2, "--bogus"),
        (["{gguf}", "x", "--threads", "100000"], 2, "--threads"),
        (["{gguf}", "x", "--max-tokens", "many"], 2, "--max-tokens"),
        (["{gguf}", "x", "--max-tokens", "0"], 2, "max_tokens must be at least 1"),
        (["{gguf}", "x", "--temperature", "nan"], 2, "temperature"),
        (["{gguf}", "x", "--raw", "--system", "y"], 2, "--system"),
        (["{gguf}", "x", "--recipe", "q8_0"], 2, "--recipe"),
        (["{built}", "x", "--recipe", "q9_9"], 3, "q8_0"),
        (["missing.gguf", "x"], 3, "missing.gguf"),
        (["{truncated}", "x"], 3, "truncated"),
        (["{text}", "x"], 3, "gguf"),
        (["{gguf}", "word " * 3000], 2, "fit"),
        (["{gguf}", "word " * 3000], 2, "the model has no longer one"),
        (
            ["{gguf}", "word " * 300, "--context", "128"],
            2,
            "--context gives a longer one",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_goes_wrong_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    pebble_built: Path,
    gguf_file: Path,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    truncated, text = tmp_path / "cut.gguf", tmp_path / "notes.gguf"
    truncated.write_bytes(gguf_file.read_bytes()[: gguf_file.stat().st_size // 2])
    text.write_text("These are notes.\n")
    places = {"gguf": gguf_file, "built": pebble_built, "truncated": truncated, "text": text}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(["run", *(argument.format_map(places) for argument in arguments)]) == code
    shown = capfd.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
