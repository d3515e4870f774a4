"""`ingot measure`: what it prints, keeps and ends with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from app.models.catalog import catalog
from app.models.library import note_loaded
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings
from tests.quantize.planted import plant
from tests.support import read_rows


def test_a_good_file_and_one_that_is_not(
    command: Any, home: Path, float_gguf: Path, gguf_file: Path, pebble: Path, tmp_path: Path
) -> None:
    good = Path(shutil.copy(gguf_file, tmp_path / "good.gguf"))
    bad = plant("rope base", good, tmp_path)
    page, text = tmp_path / "page.html", tmp_path / "text.txt"
    text.write_text("".join((pebble / "evaluation.txt").read_text().splitlines(True)[:120]))
    asked = ("measure", good, "--against", float_gguf, "--text", text, "--limit", "100")
    asked += ("--no-speed",)
    done = command(*asked, "--output", page, "--max-kl", "0.5")
    assert done.returncode == 0, done.stderr
    assert "good.gguf: no fault found (the same tokens on" in done.stdout
    assert "good.gguf" in page.read_text()
    # What was measured is shown where files are listed, and not measured again.
    note_loaded(good)
    (entry,) = (one for one in catalog() if one.path == good)
    assert entry.fidelity is not None
    done = command(*asked, bad, "--json")
    assert done.returncode == 1
    first, second = json.loads(done.stdout)["files"]
    assert (first["faults"], first["front"]) == ([], True)
    assert second["faults"][0].startswith("settings: llama.rope.freq_base")
    assert not second["front"]
    assert first["fidelity"]["kl_mean"] == entry.fidelity.kl_mean
    # A bound that it is beyond, and a picture that would not be one.
    assert command(*asked, "--output", tmp_path / "page.pdf").returncode == 2
    done = command(*asked, "--max-kl", "1e-9")
    assert done.returncode == 1
    assert "the bound is 1e-09" in done.stdout


def test_own_rows_and_one_budget(
    command: Any, home: Path, pebble_f16: Path, pebble_built: Path, tmp_path: Path
) -> None:
    four, more = pebble_built / "pebble-q4_k_m.gguf", ("--max-tokens", "40")
    # Of rows whose right answers are the original's, an answer that differs is one that flipped.
    asked = [{"prompt": f"Tell me a story about a {who}"} for who in ("fox", "tailor", "robot")]
    rows, out, page = (tmp_path / name for name in ("rows.jsonl", "out.jsonl", "page.html"))
    rows.write_text("".join(json.dumps(row) + "\n" for row in asked))
    assert command("batch", rows, out, "-m", pebble_f16, *more, "--reproducible").returncode == 0
    right = [record["response"] for record in read_rows(out)]
    marked = [{**row, "expected": text} for row, text in zip(asked, right, strict=True)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in marked))
    line = ("measure", four, "--against", pebble_f16, "--limit", "300", "--no-speed")
    picture = tmp_path / "front.svg"
    kinds = ("--kv-types", "q4_0,q4_0:f16", "--context", "700", "--output", picture)
    done = command(*line, *kinds, "--prompts", rows, *more, "--output", page, "--json")
    assert done.returncode == 0, done.stdout
    (card,) = json.loads(done.stdout)["files"]
    same = card["rows"]["same"]
    assert same < 3  # else nothing of this was tried
    assert card["rows"]["flips"] == {"rows": 3, "to_wrong": 3 - same, "to_right": 0}
    assert f"{same}/3 {3 - same}↓ 0↑" in page.read_text()
    assert all(text in picture.read_text() for text in ("<svg", four.name))
    assert f"{same}/3 {3 - same}↓ 0↑" in command(*line).stdout  # it is on the card

    # The folder's files within memory and divergence: of all that was measured the best.
    full = card["caches"]["f16"]["kl_mean"]
    added = {kind: max(one["kl_mean"] - full, 0) for kind, one in card["caches"].items()}
    loss = {kind: card["fidelity"]["kl_mean"] + kl for kind, kl in added.items()}
    need = {
        kind: estimate(read_model(four), RunnerSettings(1, 1024, kv_type=kind)).total
        for kind in added
    }
    within = ("plan", pebble_built, "--context", "1024")
    for limit in need.values():
        found = json.loads(command(*within, "--json", "--fits", f"{limit / 1e6}MB").stdout)
        best = min((k for k in need if need[k] <= limit), key=lambda k: (loss[k], need[k]))
        parts = found["shares"]
        assert (found["path"], found["kv_type"]) == (str(four), best)
        assert parts["all"] == {"bytes": need[best], "kl": loss[best]}
        keys, values, cache = (parts[name] for name in ("keys", "values", "keys and values"))
        assert keys["bytes"] + values["bytes"] == cache["bytes"]
        known = [text.partition(":")[0] for text in found["not_measured"]]
        assert known == ["pebble-q8_0.gguf", "onnx-int4", "onnx-int8"]
    told = command(*within, "--max-kl", str(max(loss.values()))).stdout
    assert told.startswith(f"{four.name}, keys and values q4_0, 1,024 tokens\n")
    assert "behind 700 tokens; the context is 1,024" in told
    assert f"Run it: ingot chat {four} --context 1024 --kv-type q4_0\n" in told
    for code, said, bounds in (
        (4, "MB of memory", ("--fits", "1MB")),
        (1, "has a KL divergence of", ("--fits", "1GB", "--max-kl", "1e-9")),
        (2, "nothing to choose is measured", ("--fits", "1GB", "--kv-type", "q5_1")),
        (2, "for one chat", ("--fits", "1GB", "--slots", "2")),
    ):
        done = command(*within, *bounds)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert said in done.stderr
