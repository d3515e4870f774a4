"""What `ingot batch` writes and tells: forms of output, growing outputs, shards, limits, status."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import stat
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.batch.report.figures import status_of
from app.cli.main import main
from tests.app import stopping
from tests.support import read_rows, write_rows

ONE = ["--threads", "1"]
ROWS = 160
MANY = 700  # that are not all answered before a test has looked
SHORT = ["--max-tokens", "8", *ONE]


def request(name: str, **body: Any) -> dict[str, Any]:
    chat = "messages" in body
    url = "/v1/chat/completions" if chat else "/v1/completions"
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "any", **body}}


def numbers(path: Path, count: int) -> Path:
    return write_rows(path, [{"id": i, "prompt": f"The number {i} is"} for i in range(count)])


def test_openai_lines(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "What is 2 + 3?"}]
    rows = [
        request("chat", messages=asked),
        request("some", messages=asked, n=2, temperature=1, seed=1, logprobs=True, top_logprobs=3),
        request("text", prompt="The number 7 is", logprobs=2),
        request("long", prompt="word " * 5000),
        request("bad", prompt=7),
    ]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    report = tmp_path / "report.json"
    words = ["batch", source, out, "--model", gguf_file, *SHORT, "--report", report]
    done = command(*words)
    assert done.returncode == 1, done.stderr
    lines = read_rows(out)
    assert [line["custom_id"] for line in lines] == ["chat", "some", "text", "long", "bad"]
    assert [line["response"]["status_code"] for line in lines] == [200, 200, 200, 400, 400]
    bodies = [line["response"]["body"] for line in lines]
    assert [len(body.get("choices", ())) for body in bodies] == [1, 2, 1, 0, 0]
    assert [line["error"] and line["error"]["code"] for line in lines] == [
        None, None, None, "context_length_exceeded", "unsupported_parameter",
    ]  # fmt: skip
    spoken = bodies[1]["choices"][0]
    tokens = [entry["token"] for entry in spoken["logprobs"]["content"]]
    assert "".join(tokens) == spoken["message"]["content"]
    assert "".join(bodies[2]["choices"][0]["logprobs"]["tokens"]) == bodies[2]["choices"][0]["text"]

    figures = json.loads(report.read_text())
    assert figures["summary"]["answered"] == 3
    assert figures["summary"]["errors"]["context_length_exceeded"] == 1
    assert figures["engine"]["steps"] > 0
    assert figures["settings"]["sampling"]["max_tokens"] == 8

    if importlib.util.find_spec("openai") is not None:
        from openai.types import Completion
        from openai.types.chat import ChatCompletion

        for body in bodies[:2]:
            ChatCompletion.model_validate(body, strict=True)
        Completion.model_validate(bodies[2], strict=True)


def test_a_table_with_several_answers_a_row(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("name,prompt\nada,What is 2 + 3?\nbob,What is 4 + 5?\n")
    out = tmp_path / "out.csv"
    flags = ["--n", "2", "--best-of", "3", "--temperature", "1", "--seed", "5"]
    done = command("batch", source, out, "--model", gguf_file, *SHORT, *flags)
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["ada", "bob"]
    for row in rows:
        choices = json.loads(row["choices"])
        assert len(choices) == 2
        assert choices[0]["text"] == row["response"]
        assert int(row["usage.completion_tokens"]) >= 2


def test_a_growing_output_over_kills(ingot: Any, gguf_file: Path, tmp_path: Path) -> None:
    source, out = numbers(tmp_path / "in.jsonl", MANY), tmp_path / "out.jsonl"
    command = ["batch", source, out, "--model", gguf_file, "--raw", "--unordered", *ONE]
    command += ["--max-tokens", "24", "--slots", "8", "--quiet"]
    # Answers are appended once a second: there are some by then, of at most 8 a write.
    held = stopping.after_rows(tmp_path / "held", 40, pause_s=0.05)
    process = ingot.start(*command, env=held)
    stopping.wait_stopped(process)  # it is still there, and gets no further
    seen = out.read_text().splitlines()
    assert len(seen) > 2  # one may be torn
    told = status_of(out)
    process.kill()
    process.communicate()
    assert (told.state, told.rows) == ("running", MANY)
    assert MANY > told.done >= len(seen) - 1
    with out.open("ab") as file:
        file.write(b'{"id":7,"ind')  # as a kill in the middle of a write leaves it
    told = json.loads(ingot("batch", "status", out, "--json").stdout)
    assert (told["state"], told["done"] + told["left"]) == ("stopped", MANY)
    done = ingot(*command)
    assert done.returncode == 0, done.stderr
    text = out.read_text().splitlines()
    assert text[: len(seen) - 1] == seen[:-1]  # what was there stayed where it was
    assert Counter(json.loads(line)["id"] for line in text) == Counter(range(MANY))
    told = json.loads(ingot("batch", "status", out, "--json").stdout)
    assert (told["state"], told["left"], told["done"]) == ("finished", 0, MANY)


def test_shards_are_merged(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    source = numbers(tmp_path / "in.jsonl", 20)
    parts = [tmp_path / f"part{i}.jsonl" for i in (1, 2)]
    for i, part in enumerate(parts, 1):
        words = ["batch", source, part, "--model", gguf_file, "--raw", *SHORT]
        assert command(*words, "--shard", f"{i}/2").returncode == 0
    assert 0 < len(read_rows(parts[0])) < 20
    out = tmp_path / "out.jsonl"
    assert main(["batch", "merge", str(out), str(parts[0])]) == 2
    assert main(["batch", "merge", str(out), *map(str, parts)]) == 0
    assert [record["id"] for record in read_rows(out)] == list(range(20))


def test_limits_leave_the_rest_for_later(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    source, out = numbers(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl"
    words = ["batch", source, out, "--model", gguf_file, "--raw", *ONE, "--json"]
    words += ["--max-tokens", "24", "--slots", "4"]
    # The time includes that for loading, so that at once after it the job drains.
    done = command(*words, "--max-time", "0.01")
    assert done.returncode == 1, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["event"], end["ended"]) == ("end", "time")
    assert end["answered"] + end["unfinished"] == 60
    assert end["unfinished"] > 0
    assert not out.exists()
    assert "--max-time" in done.stderr or end["answered"] == 0

    done = command(*words, "--row-timeout", "0.001", "--retries", "0")
    assert done.returncode == 1, done.stderr
    failed = read_rows(out)
    assert {record["error"]["code"] for record in failed if "error" in record} == {"timeout"}
    kept = command(*words, "--skip-failed")
    end = json.loads(kept.stdout.splitlines()[-1])
    assert (kept.returncode, end["slots"], end["errors"]) == (1, 0, {"timeout": end["failed"]})
    assert read_rows(out) == failed
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert all("response" in record for record in read_rows(out))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status"], "usage: ingot batch status OUT"),
        (["status", "none.jsonl"], "no job here"),
        (["status", "in.jsonl", "--model", "m"], "./status"),
        (["merge", "out.jsonl"], "PART"),
        (["merge", "out.jsonl", "missing.jsonl"], "no such file"),
        (["in.jsonl", "out.jsonl"], "--model"),
        (["in.jsonl", "out.jsonl", "more.jsonl", "--model", "m"], "more.jsonl"),
        (["in.jsonl", "-", "--unordered", "--model", "M"], "--unordered"),
        (["in.jsonl", "-", "--format", "csv", "--model", "M"], "csv"),
        (["in.jsonl", "out.csv", "--unordered", "--model", "M"], "--unordered"),
        (["in.jsonl", "out.jsonl", "--shard", "3/2", "--model", "M"], "I/N"),
        (["in.jsonl", "out.jsonl", "--n", "3", "--best-of", "2", "--model", "M"], "best_of"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refusals(
    arguments: list[str],
    words: str,
    gguf_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    numbers(tmp_path / "in.jsonl", 2)
    given = [str(gguf_file) if argument == "M" else argument for argument in arguments]
    assert main(["batch", *given]) == 2
    shown = capfd.readouterr()
    assert words in shown.err
    assert shown.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("theirs", [], "--fresh replaces it"),
        ("theirs", ["--force"], "--fresh replaces it"),  # which keeps what is there
        ("loop", ["--fresh"], "loop cannot be written: Too many levels"),
        ("pipe", ["--fresh"], "not a regular file"),
        ("/dev/null", ["--fresh"], "not a regular file"),
        ("folder", ["--fresh"], "is a folder"),
        ("protected", ["--fresh"], "cannot be written: Permission denied"),
    ],
)
def test_an_output_that_must_not_be_replaced_is_refused_before_any_work(
    name: str, words: list[str], said: str, command: Any, gguf_file: Path, tmp_path: Path
) -> None:
    source = numbers(tmp_path / "in.jsonl", 2)
    if name == "protected" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "protected").touch(0o400)
    before = sorted(tmp_path.iterdir())
    done = command("batch", source, tmp_path / name, "-m", gguf_file, "-q", *words, *SHORT)
    assert said in done.stderr
    assert (done.returncode, sorted(tmp_path.iterdir())) == (2, before)
    assert (tmp_path / "theirs").read_text() == "precious"


def test_a_file_may_be_called_status(
    gguf_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    numbers(tmp_path / "status", 2)
    assert main(["batch", f"{tmp_path}/status", "-", "--model", str(gguf_file), "-q", *SHORT]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2


def test_sigterm_while_nothing_runs(ingot: Any, gguf_file: Path, tmp_path: Path) -> None:
    source, out = numbers(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    journal = out.with_name(out.name + ".journal.jsonl")
    process = ingot.start("batch", source, out, "--model", gguf_file, *SHORT)
    while not journal.exists():  # it is made before the model is loaded
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert not out.exists()


@pytest.mark.parametrize("answered", [False, True])
def test_a_report_goes_through_pipes_and_links(
    ingot: Any, command: Any, gguf_file: Path, tmp_path: Path, answered: bool
) -> None:
    source, pipe, link, real = (tmp_path / name for name in ("in.txt", "pipe", "link", "real"))
    source.write_text("a prompt\n")
    job = ["batch", source, tmp_path / "out.jsonl", "-m", gguf_file, *SHORT, "-q"]
    if answered:
        command(*job)
    os.mkfifo(pipe)
    real.write_text("old")
    link.symlink_to(real)
    process = ingot.start(*job, "--report", pipe)
    assert json.loads(pipe.read_bytes())["summary"]["rows"] == 1
    assert process.wait(60) == 0
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    command(*job, "--report", link)
    assert link.is_symlink()
    assert json.loads(real.read_text())["summary"]["rows"] == 1
    command(*job, "--report", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    "name",
    [
        *(".", "nowhere/report.json", "in.txt/report.json"),
        # What the job uses itself, also through a link.
        *("out.jsonl", "out.jsonl.journal.jsonl", "in.txt", "link", "folder/in.txt", "model.gguf"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_any_work(
    name: str, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a prompt\n")
    Path("link").symlink_to("in.txt")
    Path("folder").symlink_to(".")
    Path("model.gguf").symlink_to(gguf_file)
    before = sorted(tmp_path.iterdir())
    code = main(["batch", "in.txt", "out.jsonl", "-m", "model.gguf", "-q", "--report", name])
    assert code == 2
    assert sorted(tmp_path.iterdir()) == before
    assert Path("in.txt").read_text() == "a prompt\n"
