"""What is checked before any work: `--dry-run`, `--strict`, and how much memory checking takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from runtimes.settings import PROMPT_CHUNK

CHAT = {"method": "POST", "url": "/v1/chat/completions"}


def request(identity: str, text: str, **body: Any) -> str:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"custom_id": identity, **CHAT, "body": {"messages": messages, **body}})


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Eight rows, three of them to be answered."""
    return write(
        tmp_path / "in.jsonl",
        [
            request("a", "What is 2 + 2?", max_tokens=5),
            request("b", "What is 2 + 3?", max_tokens=7, n=2),
            request("a", "What is 2 + 4?"),
            "{",
            request("c", "word " * 400),
            request("d", "hi", stream=True),
            request("e", "hi", logit_bias={"99999999": 1}),
            request("f", "What is the longest of all these questions?", max_tokens=10**6),
        ],
    )


def test_a_dry_run_counts_and_writes_nothing(
    mixed: Path, gguf_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["batch", str(mixed), "--model", str(gguf_file), "--context", "128", "--dry-run"]
    assert main([*command, "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert (report["rows"], report["valid"], report["invalid"]) == (8, 3, 5)
    assert [(found["where"], found["code"]) for found in report["problems"]] == [
        ("line 3", "duplicate_id"),
        ("line 4", "invalid_json"),
        ("line 6", "unsupported_parameter"),
        ("line 5", "context_length_exceeded"),
        ("line 7", "invalid_request"),
    ]
    longest = report["longest_prompt"]
    assert longest["where"] == "line 8"
    # An answer ends where the context does; each sample is one.
    assert report["most_answer_tokens"] == 5 + 2 * 7 + (128 - longest["tokens"])
    assert report["memory"]["total"] > gguf_file.stat().st_size / 2
    assert main(command) == 1
    shown = capfd.readouterr().out
    assert "8: 3 valid, 5 invalid" in shown
    assert "line 1 has the same custom_id" in shown
    assert [path.name for path in mixed.parent.iterdir()] == ["in.jsonl"]


def test_tokens_are_those_of_the_run(
    ingot: Any,
    gguf_file: Path,
    onnx_folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = write(
        tmp_path / "in.jsonl",
        [json.dumps({"prompt": f"What is {i} + 7? Grüße"}) for i in range(5)]
        + [request("x", "Say hello."), request("x", "Once upon a time")],
    )
    text = rows.read_text("utf-8").replace(
        'chat/completions", "body": {"messages": [{"role": "user", "content": "Once upon a time"}]',
        'completions", "body": {"prompt": "Once upon a time"',
    )
    rows.write_text(text.replace('"x"', '"y"', 1), "utf-8")
    for model in (gguf_file, onnx_folder):
        options = ["--model", str(model), "--max-tokens", "2", "--threads", "1", "--json"]
        assert main(["batch", str(rows), *options, "--dry-run"]) == 0
        dry = json.loads(capfd.readouterr().out)
        assert dry["invalid"] == 0
        out = tmp_path / f"{model.name}.jsonl"
        done = ingot("batch", rows, out, *options, "--quiet")
        assert json.loads(done.stdout.splitlines()[-1])["prompt_tokens"] == dry["prompt_tokens"]


def test_what_is_read_once_is_what_the_run_finds_cached(
    ingot: Any, gguf_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = "Answer in one word, and be kind to whoever asks. " * 4
    rows = write(tmp_path / "in.jsonl", [json.dumps({"prompt": f"{n} + 7?"}) for n in range(6)])
    options = ["--model", str(gguf_file), "--system", said, "--max-tokens", "2", "--slots", "2"]
    assert main(["batch", str(rows), *options, "--dry-run", "--json"]) == 0
    dry = json.loads(capfd.readouterr().out)
    assert dry["read_once_tokens"] * 5 == dry["saved_tokens"] > dry["prompt_tokens"] / 2
    done = ingot("batch", rows, tmp_path / "out.jsonl", *options, "--json", "--quiet")
    found = json.loads(done.stdout.splitlines()[-1])
    # Two rows with the same digit have some more in common.
    assert found["cached_tokens"] == pytest.approx(dry["saved_tokens"], rel=0.05)
    assert main(["batch", str(rows), *options, "--dry-run"]) == 0
    assert f"once:    the {dry['read_once_tokens']} tokens that all" in capfd.readouterr().out
    assert main(["batch", str(rows), *options, "--reproducible", "--dry-run", "--json"]) == 0
    chunks = json.loads(capfd.readouterr().out)["read_once_tokens"]
    assert chunks == dry["read_once_tokens"] // PROMPT_CHUNK * PROMPT_CHUNK
    texts = write(tmp_path / "texts.jsonl", [json.dumps({"prompt": said + str(n)}) for n in "12"])
    embed = ["--model", str(gguf_file), "--task", "embed", "--dry-run", "--json"]
    assert main(["batch", str(texts), *embed]) == 0
    assert json.loads(capfd.readouterr().out)["saved_tokens"] == 0, "each is embedded whole"
    alone = write(tmp_path / "one.jsonl", [json.dumps({"prompt": "1 + 7?"})])
    assert main(["batch", str(alone), *options, "--dry-run", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["saved_tokens"] == 0


def test_the_time_is_the_plans(
    gguf_file: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    rows = write(tmp_path / "in.jsonl", [json.dumps({"prompt": f"{i}?"}) for i in range(200)])
    command = ["batch", str(rows), "--model", str(gguf_file), "--dry-run"]
    assert main(command) == 0
    assert "ingot plan" in capfd.readouterr().out

    from app.models.planning import plan_files, task_for
    from app.options import ModelOptions
    from runtimes.planner.known import save_plan
    from runtimes.planner.plan import Figures, Plan
    from runtimes.settings import RunnerSettings

    files = plan_files(str(gguf_file), ModelOptions(), None).models
    figures = Figures(prefill_tps=1000.0, decode_tps={1: 10.0, 4: 25.0, 8: 40.0})
    settings = RunnerSettings(threads=1, slots=4, context=512, unified_kv=True, gpu_layers=0)
    plan = Plan("batch", "balanced", "llamacpp", str(gguf_file), settings, 1, figures)
    save_plan(files, task_for("batch", "balanced"), plan)
    assert main([*command, "--json", "--max-tokens", "20"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["slots"] == 4
    expected = report["prompt_tokens"] / 1000 + 200 * 20 / 25
    assert report["most_seconds"] == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"prompt":"x"}', "{"], "line 2: not JSON"),
        (['{"prompt":"x","id":1}', '{"prompt":"y","id":1}'], "line 2 that of line 1"),
        ([request("a", "x"), request("a", "y")], 'line 2: line 1 has the same custom_id "a"'),
        (['{"prompt":"x"}', json.dumps({"prompt": "word " * 4000})], "line 2: the prompt has"),
    ],
    ids=["json", "id", "custom_id", "length"],
)
def test_strict_stops_before_any_work(
    lines: list[str],
    words: str,
    gguf_file: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert main(["batch", str(rows), str(out), "--model", str(gguf_file), "--strict"]) == 2
    shown = capfd.readouterr()
    assert words in shown.err
    assert "--strict" in shown.err
    assert list(tmp_path.iterdir()) == [rows]


_PEAK = """
import sys
from app.cli.main import main
from runtimes.settings import PROMPT_CHUNK
from quantize.quality.peak import peak_resident
code = main(["batch", sys.argv[1], "--model", sys.argv[2], "--dry-run", "--json"])
print(code, peak_resident() // 1024)
"""


def test_memory_grows_by_little_for_each_row(gguf_file: Path, tmp_path: Path) -> None:
    """Ids, lines and digests are all that is kept: no row is."""
    filler = "What is this text about? " * 60
    peaks = []
    for count in (1_000, 11_000):
        rows = tmp_path / f"{count}.jsonl"
        with rows.open("w") as file:
            for i in range(count):
                file.write(json.dumps({"id": f"row {i}", "prompt": "x", "more": filler}) + "\n")
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, str(rows), str(gguf_file)],
            capture_output=True,
            text=True,
            check=True,
        )
        code, peak = done.stdout.splitlines()[-1].split()
        assert code == "0"
        peaks.append(int(peak) * 1024)
    assert (peaks[1] - peaks[0]) / 10_000 < 400


def test_a_file_name_that_is_no_unicode_is_shown(
    ingot: Any, gguf_file: Path, tmp_path: Path
) -> None:
    """Where stdout takes Unicode only, as in most locales."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "\udcff.txt").write_text("What is 2 + 2?")
    strict = {"PYTHONIOENCODING": "utf-8:strict"}
    done = ingot("batch", folder, "--model", gguf_file, "--dry-run", env=strict)
    assert done.returncode == 0, done.stderr
    assert "\\udcff.txt" in done.stdout
