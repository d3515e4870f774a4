"""`ingot batch` as users type it, on Pebble's files: order, resumption, bad rows, refusals."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from tests.support import questions, read_rows, write_rows

# One thread: threads that wait for each other crawl where the processor is shared.
ONE = ["--threads", "1"]
SHORT = ["--max-tokens", "8", "--quiet", *ONE]


def figures(done: Any) -> dict[str, Any]:
    *_, last = map(json.loads, done.stdout.splitlines())
    report: dict[str, Any] = last
    assert report["event"] == "end"
    return report


@pytest.mark.parametrize("kind", ["gguf_file", "onnx_folder"])
def test_rows_in_order_with_their_figures(
    ingot: Any, command: Any, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    rows, out = write_rows(tmp_path / "in.jsonl", questions(40)), tmp_path / "out.jsonl"
    done = ingot("batch", rows, out, "--model", model, "--max-tokens", "8", *ONE, "--json")
    assert done.returncode == 0, done.stderr
    records = read_rows(out)
    assert [record["id"] for record in records] == [f"row-{i}" for i in range(40)]
    assert [record["index"] for record in records] == list(range(40))
    for record in records:
        assert list(record) == [
            "id", "index", "prompt", "response", "finish_reason", "usage", "timings",
        ]  # fmt: skip
        assert record["finish_reason"] in ("stop", "length")
        assert 1 <= record["usage"]["completion_tokens"] <= 8
        assert record["timings"]["ttft_s"] > 0
    report = figures(done)
    assert (report["rows"], report["answered"], report["failed"]) == (40, 40, 0)
    assert report["slots"] == 16
    assert report["decode_tps"] > 0
    assert "\x1b" not in done.stderr

    # One alone gives what it gave among the others.
    alone = command("run", model, "What is 15 + 0?", *SHORT).stdout
    assert alone.strip() == records[5]["response"].strip()

    before = out.stat()
    again = command("batch", rows, out, "--model", model, "--max-tokens", "8", *ONE, "--json")
    assert again.returncode == 0
    assert figures(again)["reused"] == 40
    assert figures(again)["slots"] == 0  # the model was not loaded
    assert "up to date" in again.stderr
    assert out.stat().st_mtime_ns == before.st_mtime_ns


def test_failures_of_rows_that_are_gone_do_not_count(
    command: Any, gguf_file: Path, tmp_path: Path
) -> None:
    long = [{"id": name, "prompt": f"{name} " * 3000} for name in ("one", "two")]
    rows = [{"id": f"r{i}", "prompt": f"What is {i} + 1?"} for i in range(3)]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *long]))
    words = ["batch", source, out, "--model", gguf_file, *SHORT, "--skip-failed", "--json"]
    assert command(*words).returncode == 1
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, long[0]]))
    done = command(*words)
    begin = json.loads(done.stdout.splitlines()[0])
    assert (begin["rows"], begin["cached"], begin["failed"]) == (4, 3, 1)
    report = figures(done)
    assert (report["answered"], report["failed"]) == (3, 1)


def test_a_wait_says_what_it_does(ingot: Any, gguf_file: Path, tmp_path: Path) -> None:
    """Rows that come late, for as long as nobody has said that they are waited for."""
    out = tmp_path / "out.jsonl"
    flags = ["--max-tokens", "2", *ONE]
    process = ingot.start("batch", "-", out, "--model", gguf_file, *flags, stdin=subprocess.PIPE)
    patience = threading.Timer(120, process.kill)
    patience.start()
    said = b""
    while b"reading the input" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    patience.cancel()
    process.communicate(b'{"prompt":"What is 1 + 1?"}\n', timeout=120)
    assert process.returncode == 0
    assert len(read_rows(out)) == 1


def test_bad_rows_become_error_rows(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"prompt":"What is 1 + 1?","id":"same"}\r',
        b'{"prompt":NaN}',
        b"",
        b'{"prompt":"What is 1 + 1?","id":"same"}',
        b'{"id":"torn","prompt":',
        b'{"id":"long","prompt":"' + b"word " * 2**16 + b'"}',
        b'{"id":"nul","prompt":"a\x00b"}',
        b'{"id":"half","prompt":"\\ud83d"}',
        b'{"id":"bytes","prompt":"\xff"}',
        b'{"id":"typed","prompt":7}',
        b'{"question_id":9,"prompt":"What is 2 + 2?"}',
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\n".join(lines))
    words = ["batch", source, out, "--model", gguf_file, "--max-tokens", "8", *ONE, "--json"]
    done = command(*words)
    assert done.returncode == 1, done.stderr
    records = read_rows(out)
    assert len(records) == 10
    codes = [record.get("error", {}).get("code") for record in records]
    assert codes == [
        None,
        "invalid_json",
        None,
        "invalid_json",
        "context_length_exceeded",
        "invalid_json",
        "invalid_unicode",
        "invalid_utf8",
        "wrong_type",
        None,
    ]
    assert [r["error"]["message"].split(":")[0] for r in records if "error" in r] == [
        f"line {number}" for number in (2, 5, 6, 7, 8, 9, 10)
    ]
    assert [record["id"] for record in records] == [
        "same", 1, "same", 3, "long", 5, "half", 7, "typed", 9,
    ]  # fmt: skip
    assert "1 rows repeat" in done.stderr
    assert figures(done)["failed"] == 7

    # The row that failed in the engine is tried again; those that are done are not.
    again = command(*words)
    assert again.returncode == 1
    assert (figures(again)["reused"], figures(again)["completion_tokens"]) == (3, 0)
    assert read_rows(out) == records


def test_five_hundred_broken_lines(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    broken = [b"{", b"[]", b'{"prompt":{}}', b"\x00\xff", b'"x"', b'{"prompt":[[]]}', b"-", b"{}"]
    lines = [broken[i % len(broken)] * (1 + i // 100) for i in range(500)]
    good = {50: b'{"prompt":"What is 3 + 4?"}', 499: b'{"prompt":["What is 3 + 5?"]}'}
    for at, line in good.items():
        lines[at] = line
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\n".join(lines))
    done = command("batch", source, out, "--model", gguf_file, *SHORT)
    assert done.returncode == 1
    records = read_rows(out)
    assert [record["index"] for record in records] == list(range(500))
    for at, record in enumerate(records):
        if at in good:
            assert record["response"]
        else:
            assert record["error"]["message"].startswith(f"line {at + 1}: ")


def test_turns_are_a_conversation(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    turns = ["My name is Ada.", "What is my name?"]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"question_id": 81, "talk": {"turns": turns}}) + "\n")
    field = ["--field", "talk.turns"]
    done = command("batch", source, out, "--model", gguf_file, *SHORT, *field)
    assert done.returncode == 0, done.stderr
    (record,) = read_rows(out)
    assert record["id"] == 81
    assert len(record["responses"]) == 2
    assert record["response"] == record["responses"][1]

    # The second turn was asked with the first and its answer before it.
    messages = [
        {"role": "user", "content": turns[0]},
        {"role": "assistant", "content": record["responses"][0]},
        {"role": "user", "content": turns[1]},
    ]
    source.write_text(json.dumps({"messages": messages}) + "\n")
    done = command("batch", source, "-", "--model", gguf_file, *SHORT)
    assert json.loads(done.stdout)["response"] == record["response"]


def test_changed_settings_are_refused(
    command: Any, gguf_file: Path, onnx_folder: Path, tmp_path: Path
) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", questions(3)), tmp_path / "out.jsonl"
    words = ["batch", rows, out, "--quiet", "--json", *ONE, "--model", gguf_file]
    assert command(*words, "--max-tokens", "4").returncode == 0
    content = out.read_bytes()

    changed = command(*words, "--max-tokens", "5", "--temperature", "0.5")
    assert changed.returncode == 2
    assert "sampling.max_tokens: 4 -> 5" in changed.stderr
    assert "sampling.temperature: 0.0 -> 0.5" in changed.stderr
    other = command(*words[:-1], onnx_folder, "--max-tokens", "4")
    assert other.returncode == 2
    assert onnx_folder.name in other.stderr
    assert out.read_bytes() == content

    forced = command(*words, "--max-tokens", "5", "--force")
    assert (forced.returncode, figures(forced)["reused"]) == (0, 0)
    back = command(*words, "--max-tokens", "4", "--force")
    assert figures(back)["reused"] == 3  # the old answers were kept
    assert out.read_bytes() == content
    fresh = command(*words, "--max-tokens", "4", "--fresh")
    assert (fresh.returncode, figures(fresh)["reused"]) == (0, 0)


def test_an_edited_input_keeps_what_stayed(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", questions(6)), tmp_path / "out.jsonl"
    words = [
        "batch",
        rows,
        out,
        "--quiet",
        "--json",
        "--max-tokens",
        "4",
        *ONE,
        "--model",
        gguf_file,
    ]
    assert command(*words, "--limit", "4").returncode == 0
    before = {record["id"]: record["response"] for record in read_rows(out)}
    assert len(before) == 4

    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(['{"id":"new","prompt":"Who are you?"}', *lines[1:]]))
    done = command(*words)
    assert figures(done)["reused"] == 3
    after = {record["id"]: record["response"] for record in read_rows(out)}
    assert list(after) == ["new", *(f"row-{i}" for i in range(1, 6))]
    assert {name: after[name] for name in list(before)[1:]} == dict(list(before.items())[1:])


def test_equal_prompts_get_samples_of_their_own(
    command: Any, gguf_file: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("Tell me a story.\n" * 4)
    words = ["batch", source, "-", "--model", gguf_file, *SHORT]
    first = command(*words, "--temperature", "1.5", "--seed", "7").stdout
    texts = [json.loads(line)["response"] for line in first.splitlines()]
    assert len(set(texts)) > 1
    again = command(*words, "--temperature", "1.5", "--seed", "7").stdout
    assert [json.loads(line)["response"] for line in again.splitlines()] == texts


def test_pipes(ingot: Any, gguf_file: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in.jsonl", questions(30)).read_bytes()
    done = ingot("batch", "-", "-", "--model", gguf_file, *SHORT, stdin=rows + b"{\n")
    assert done.returncode == 1
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["index"] for record in records] == list(range(31))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]

    process = ingot.start("batch", tmp_path / "in.jsonl", "-", "--model", gguf_file, *SHORT)
    assert json.loads(process.stdout.readline())["id"] == "row-0"
    process.stdout.close()
    assert process.wait(60) in (0, 141)  # 0 if all was written before the pipe was closed
    assert b"Traceback" not in process.stderr.read()


def test_trying_it_out_writes_nothing(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", questions(9)), tmp_path / "out.jsonl"
    done = command("batch", rows, out, "--model", gguf_file, "--test", *ONE)
    assert done.returncode == 0
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["index"] for record in records] == [0, 1, 2]
    assert all(record["usage"]["completion_tokens"] <= 16 for record in records)
    assert list(tmp_path.iterdir()) == [rows]


def test_a_bar_on_a_terminal(ingot: Any, gguf_file: Path, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", questions(40)), tmp_path / "out.jsonl"
    screen, end = pty.openpty()
    command = ["batch", rows, out, "--model", gguf_file, "--max-tokens", "8", *ONE]
    process = ingot.start(*command, stderr=end, env={"TERM": "xterm"})
    os.close(end)
    shown = b""
    try:
        while piece := os.read(screen, 4096):
            shown += piece
    except OSError:  # how Linux tells that the other end is closed
        pass
    os.close(screen)
    assert process.wait(60) == 0
    assert b"\x1b[" in shown
    assert b"/40" in shown
    assert b"tok/s" in shown
    assert b"KV" in shown
    assert b"GiB" in shown
    assert b"40 rows: 40 answered" in shown
    assert len(read_rows(out)) == 40


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"", ["in.jsonl", "out.jsonl"], "has no rows"),
        (b"\n \r\n\n", ["in.jsonl", "out.jsonl"], "has no rows"),
        (b'{"a":1,"b":2}\n', ["in.jsonl", "out.jsonl"], "a, b"),
        (b'{"a":"x","b":2}\n', ["in.jsonl", "out.jsonl", "--field", "c.d"], "a, b"),
        (b'{"prompt":"x"}\n', ["in.jsonl", "in.jsonl"], "overwrite the input"),
        (b'{"prompt":"x"}\n', ["in.jsonl", "none/out.jsonl"], "no folder"),
        (b'{"prompt":"x"}\n', ["in.jsonl", "."], "folder"),
        (b'{"prompt":"x"}\n', ["in.jsonl", "mine.txt"], "--fresh"),
        (b'{"prompt":"x"}\n', ["in.jsonl"], "OUT"),
        (b'{"prompt":"x"}\n', ["missing.jsonl", "out.jsonl"], "no such file"),
        (b'{"prompt":"x"}\n', ["in.jsonl", "-", "--json"], "--json"),
        (b'{"prompt":"x"}\n', ["in.jsonl", "out.jsonl", "--top-p", "7"], "top_p"),
        (b'{"prompt":"x"}\n', ["in.jsonl", "out.jsonl", "--slots", "0"], "--slots"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_refusals(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    gguf_file: Path,
    tmp_path: Path,
    content: bytes,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(content)
    (tmp_path / "mine.txt").write_text("precious")
    assert main(["batch", *arguments, "--model", str(gguf_file)]) == 2
    shown = capfd.readouterr()
    assert words in shown.err
    assert shown.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "precious"
