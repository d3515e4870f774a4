"""`ingot run` as users type it, on Pebble's files."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from runtimes.llamacpp.backend import BACKEND as LLAMACPP

QUESTION = "What is the capital of France?"
STORY = "Tell me a story about a fox."
# One thread: threads that wait for each other crawl where the processor is shared.
ONE = ["--threads", "1"]
# An answer that takes minutes: no end comes before its last token, and older ones make room.
ENDLESS = ["--min-tokens", "1000000", "--max-tokens", "1000000", "--context-shift", *ONE]


def report_of(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_json_and_the_choice_of_a_file(command: Any, pebble_built: Path) -> None:
    asked = ("run", pebble_built, QUESTION, "--json", "--quiet", *ONE)
    done = command(*asked, "--recipe", "q8_0")
    report = report_of(done)
    assert done.stderr == ""
    assert set(report) == {"text", "finish_reason", "usage", "timings", "model", "runtime"}
    assert "Paris" in report["text"]
    assert (report["finish_reason"], report["runtime"]) == ("stop", "llamacpp")
    usage = report["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < report["timings"]["ttft_s"] <= report["timings"]["total_s"]
    named = Path(report["model"]["file"]).name
    raw = report_of(command(*asked, "--file", named, "--raw", "--max-tokens", "1"))
    assert raw["model"] == report["model"]
    assert raw["usage"]["prompt_tokens"] < usage["prompt_tokens"]  # without the template


def test_a_draft_is_named_and_counted_or_refused(
    command: Any, pebble_built: Path, tmp_path: Path
) -> None:
    asked = ("run", pebble_built, STORY, "--recipe", "q8_0", *ONE)
    plain = command(*asked, "--quiet")
    done = command(*asked, "--draft", pebble_built / "pebble-q4_k_m.gguf")
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert "pebble-q8_0.gguf with the draft pebble-q4_k_m.gguf on llamacpp" in done.stderr
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((pebble_built / "pebble-q8_0.gguf").read_bytes()[:200_000])
    for draft, said in (
        (tmp_path / "none.gguf", f"--draft: {tmp_path / 'none.gguf'}"),
        (cut, "cut.gguf"),
        (LLAMACPP.selftest, "cannot be the draft of"),
    ):
        refused = command(*asked, "--draft", draft)
        assert refused.returncode == 3
        assert said in refused.stderr


def test_a_full_context_ends_the_answer_or_is_shifted(command: Any, pebble_built: Path) -> None:
    long = [STORY, "--context", "40", "--min-tokens", "60", "--max-tokens", "60", "--json", *ONE]
    asked = ["run", pebble_built, *long, "--recipe"]
    full = report_of(command(*asked, "q8_0"))
    assert full["finish_reason"] == "context"
    shifted = report_of(command(*asked, "q8_0", "--context-shift"))
    assert (shifted["finish_reason"], shifted["usage"]["completion_tokens"]) == ("length", 60)
    assert shifted["text"].startswith(full["text"])


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
