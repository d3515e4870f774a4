"""`ingot bench --sweep`: Pebble's files with few rows and few tokens, beside other programs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from app.bench import row_sweep
from app.bench.options import BenchOptions
from app.bench.row_sweep import plan_sweep, run_sweep
from app.bench.sweep_report import as_object, render_page
from app.sweeps import Sweep, SweepCell, SweepResult, last, tables, text, verdicts
from quantize.fromjson import from_json
from quantize.resolve import resolve
from runtimes.models.registry import backend_of, read_model, tokenizer_of
from runtimes.output import html

SMALL = ["--sweep", "--batch-sizes", "1", "--lengths", "6+5", "--repeats", "1", "--threads", "1"]


@pytest.fixture(autouse=True)
def _own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sweep was begun here. Measuring the bandwidth takes a second; `ingot doctor` does so in
    its own test."""
    monkeypatch.setattr(row_sweep, "memory_bandwidth", lambda _: 2e10)


def test_a_file_and_others_do_the_same_work(
    command: Any, pebble_built: Path, tmp_path: Path
) -> None:
    written = [tmp_path / f"sweep.{kind}" for kind in ("html", "svg", "png", "json")]
    outputs = [word for path in written for word in ("--output", path)]
    others = ("llama-cpp-python", "ingot-serve", "llama-server=false")
    against = [word for name in others for word in ("--against", name)]
    file = resolve(pebble_built, recipe="q8_0")
    done = command("bench", file, *SMALL, "--kv-types", "q8_0", *against, *outputs, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    cells = {one["cell"]["side"]: one for one in report["measured"][1:]}
    assert cells.keys() == {"ingot", "llama-cpp-python", "ingot-serve", "llama-server"}
    one = cells["ingot"]
    assert one["cell"]["kv_type"] == "q8_0"
    assert one["tps"] == pytest.approx(5 / one["seconds"][0], rel=1e-3)
    assert one["memory"] > 1e6
    assert one["ttft_s"] < one["seconds"][0]
    assert cells["ingot-serve"]["tps"] > 0
    assert cells["llama-cpp-python"]["tps"] > 0
    # A program that ends at once is no reason to end the sweep.
    assert "ended with exit code 1" in cells["llama-server"]["problem"]
    assert "<script" not in (page := written[0].read_text())
    assert html(file.name) in page
    assert written[1].read_text().count("<svg") == 1
    assert written[2].read_bytes().startswith(b"\x89PNG")
    assert json.loads(written[3].read_text()) == report
    assert f"[1/5] {file.name}, a prompt of 512" in done.stderr


def test_each_side_has_the_files_that_it_takes(pebble_built: Path) -> None:
    files = [resolve(pebble_built, recipe=recipe) for recipe in ("q8_0", "onnx-int8")]
    options = BenchOptions(kv_types=("f16", "q8_0"), against=["llama-cpp-python", "http://x/v1/"])
    plan, left_out = plan_sweep(files, options)
    assert not left_out
    # A graph may have more ids than its tokenizer, which the engine refuses.
    sizes = [tokenizer_of(read_model(path)).vocab_size for path in files]
    assert list(plan.vocabularies.values()) == sizes
    found: dict[tuple[str, str, str], list[int]] = {}
    for cell in plan.cells:
        if cell.prompt == 16:
            found.setdefault((cell.file, cell.kv_type, cell.side), []).append(cell.rows)
    every = [1, 2, 4, 8, 16, 32, 64]
    gguf, onnx = (path.name for path in files)
    assert found == {
        **{(gguf, kind, side): every for kind in ("f16", "q8_0") for side in ("ingot", "http://x")},
        **{(gguf, kind, "llama-cpp-python"): [1] for kind in ("f16", "q8_0")},
        **{(onnx, "f16", side): every for side in ("ingot", "http://x")},
    }


def test_an_ended_sweep_goes_on(pebble_built: Path, home: Path) -> None:
    path = resolve(pebble_built, recipe="onnx-int8")
    options = BenchOptions(sizes=(2,), lengths=((6, 5), (5, 6)), repeats=1, threads=1)
    plan, _ = plan_sweep([path], options)
    said: list[str] = []

    def tell(line: str) -> None:
        said.append(line)
        if line.startswith("[2/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, tell)
    (begun,) = (home / "cache" / "sweeps").glob("*.jsonl")
    with begun.open("a") as file:
        file.write('{"cell": {"file": "cut o')  # as a full disk leaves it
    said.clear()
    sweep = run_sweep(plan, said.append)
    assert said[0] == "going on with the sweep that was begun: 2 of 3 are there"
    assert [line[:5] for line in said[1:]] == ["[3/3]"]
    assert [one.cell for one in sweep.measured] == list(plan.cells)
    assert not begun.exists()  # it is over: the next one measures anew
    found = last()
    assert found is not None
    assert found[0] == sweep


def test_what_does_not_fit_is_left_out_and_said(pebble_built: Path, command: Any) -> None:
    path = resolve(pebble_built, recipe="q8_0")
    room = read_model(path).context_length
    done = command("bench", path, *SMALL, "--lengths", f"{room}+5")
    assert done.returncode == 0, done.stderr
    assert (
        f"left out: {path.name}, {room} + 5 tokens, 1 row; its context is {room:,}" in done.stderr
    )
    only = command("bench", path, "--sweep", "--lengths", f"{room}+5")
    assert only.returncode == 2
    assert "left out" in only.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lengths", "16"], "'16' is not like 16+128"),
        (["--lengths", "16+1"], "'16+1' is not like 16+128"),
        (["--kv-types", "q9_0"], "'q9_0' is not one of f16"),
        (["--against", "llama"], "'llama': known are ingot-serve, llama-server"),
        (["--against", "llama-server=/nowhere"], "there is no such program"),
        (["--against", "transformers"], "needs a folder of its own"),
        (["--against", "llama-cpp-python=x"], "takes no folder"),
        (["--output", "sweep.pdf"], "it ends with none of .html"),
        (["--what", "speed"], "it goes with neither --what nor --depth"),
    ],
)
def test_refused(command: Any, pebble_built: Path, words: list[str], said: str) -> None:
    done = command("bench", pebble_built, "--sweep", *words)
    assert done.returncode == 2
    assert said in re.sub(r"[\s│]+", " ", done.stderr)


def _sweep() -> Sweep:
    cell = SweepCell("a$x.gguf", "f16", 16, 128, 1, "ingot")
    probe = SweepCell("a$x.gguf", "f16", 512, 1, 1, "ingot")
    measured = [SweepResult(probe, (1.0,), 1.0, operations_per_s=4e9)]
    for rows, tps, theirs in ((1, 50.0, 40.0), (8, 150.0, 200.0)):
        one = replace(cell, rows=rows)
        more = {"ttft_s": 0.2, "tpot_s": 0.02, "memory": 10**9}
        measured.append(
            SweepResult(one, (1.0,), tps, bytes_per_s=1e10, operations_per_s=1e9, **more)
        )
        measured.append(SweepResult(replace(one, side="llama-server"), (1.0,), theirs))
        measured.append(SweepResult(replace(one, file="b", kv_type="q8_0"), (1.0,), 60.0 + rows))
    measured.append(SweepResult(replace(cell, rows=8, side="x"), problem="it <b>failed</b>"))
    return Sweep("a processor", 2, 2e10, tuple(measured))


def test_figures_in_words_and_tables() -> None:
    sweep = _sweep()
    (title, (head, one, eight)), (other, _) = tables(sweep)
    assert title == "a$x.gguf: 16 + 128 tokens"
    assert other == "b, q8_0 cache: 16 + 128 tokens"
    row = dict(zip(head, eight, strict=True))
    assert (row["rows"], row["tok/s"], row[": 1 row"], row["TTFT"]) == (
        "8",
        "150.0",
        "3.00x",
        "200 ms",
    )
    assert (row["bandwidth"], row["operations"], row["MB"]) == ("50%", "25%", "1,000")
    assert (row["llama-server"], row["x"], row["ratio to the best"]) == ("200.0", "failed", "0.75")
    assert dict(zip(head, one, strict=True))["ratio to the best"] == "1.25"
    assert verdicts(sweep) == [
        "16 + 128 tokens: batched over one after another at most 3.00x (a$x.gguf, 8 rows)",
        "16 + 128 tokens, fastest by rows: b, q8_0 cache (1); a$x.gguf (8)",
    ]
    assert text(sweep)[-1] == "x on a$x.gguf: it <b>failed</b>"
    page = render_page(sweep)
    assert "a$x.gguf" in page
    again = json.loads(json.dumps(as_object(sweep)))
    assert from_json(Sweep, again) == sweep
    assert asdict(sweep)["bandwidth"] == again["bandwidth"]


def test_what_a_step_costs(pebble_built: Path, tmp_path: Path) -> None:
    """The formats agree on the multiplications, and each reads its own bytes."""
    costs = {}
    for recipe in ("q8_0", "onnx-int4", "onnx-int8"):
        model = read_model(resolve(pebble_built, recipe=recipe))
        cost = backend_of(model).step_cost(model)
        assert cost is not None
        assert cost.output == model.vocab_size * model.hidden
        assert 0.5 < cost.nbytes / model.nbytes <= 1
        costs[recipe] = cost
    assert len({(one.layers, one.output) for one in costs.values()}) == 1
    assert costs["onnx-int4"].nbytes < costs["onnx-int8"].nbytes
