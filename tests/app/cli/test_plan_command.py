"""`ingot plan`, with its memory in a folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.models.planning import choose
from app.options import ModelOptions, PlanOptions
from quantize.manifest import load_manifest
from runtimes.settings import RunnerSettings
from tests.runtimes.models.sparse_gguf import write_sparse_gguf
from tests.support import own_home


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_home(tmp_path_factory.mktemp("home")):
        yield


def test_a_plan_is_made_once(command: Any, pebble_built: Path) -> None:
    arguments = ("plan", pebble_built, "--context", "128", "--slots", "2", "--split-kv")
    first = command(*arguments, "--json")
    assert first.returncode == 0, first.stderr
    assert "trying" in first.stderr
    said = json.loads(first.stdout)
    four = {Path(entry.path).name for entry in load_manifest(pebble_built).files if entry.bits == 4}
    assert {a["file"] for a in said["alternatives"]} == four
    assert Path(said["path"]).name in four
    assert (said["slots"], said["context"], said["remembered"]) == (2, 128, False)
    assert said["figures"]["decode_tps"]["2"] > 0
    rows = {(row["slots"], row["context"]): row for row in said["memory_table"]}
    assert said["depth"] == said["figures"]["measured_depth"] == 0  # a trial takes the context
    assert rows[2, 128]["total"] == said["memory"] <= said["free"]

    second = command(*arguments)
    assert (second.returncode, second.stderr) == (0, "")  # nothing was tried
    assert Path(said["path"]).name in second.stdout.splitlines()[0]
    assert "measured earlier" in second.stdout

    # Front ends find it too, by what they were asked for.
    options, fixed = ModelOptions(context=128), PlanOptions(unified_kv=False)
    choice = choose(str(pebble_built), options, fixed, "chat", 2)
    assert choice.planned
    assert (str(choice.file.path), choice.settings.slots) == (said["path"], 2)
    assert not choose(str(pebble_built), options, fixed, "batch", 2).planned
    assert not choose(str(pebble_built), options, PlanOptions(bits="8"), "chat", 2).planned


def test_the_depth_of_the_speeds_is_told(command: Any, pebble_built: Path) -> None:
    fixed = ("--recipe", "q8_0", "--threads", "1", "--split-kv", "--context", "256")
    done = command("plan", pebble_built, *fixed, "--depth", "100", "--json", "--again")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["depth"], said["figures"]["measured_depth"]) == (100, 100)
    done = command("plan", pebble_built, *fixed, "--depth", "95")
    assert done.stderr == ""  # one plan, by powers of two
    assert "speeds behind 100 tokens" in done.stdout
    assert "of answer behind 100" in done.stdout
    done = command("plan", pebble_built, *fixed, "--depth", "121")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--depth 121: at most 120 with a context of 256 tokens" in done.stderr
    # A chat stands at another depth, and takes the nearest plan; it has one slot in any case.
    options = ModelOptions(recipe="q8_0", threads=1, context=256)
    assert choose(str(pebble_built), options, PlanOptions(unified_kv=False), "chat", 1).planned


def test_what_is_not_planned_comes_from_the_flags(
    pebble_built: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ModelOptions(recipe="q8_0", context=96, threads=1)
    fixed = PlanOptions(kv_type="q8_0", batch_tokens=64, unified_kv=True, profile="throughput")
    choice = choose(str(pebble_built), options, fixed, "batch", 3)
    assert choice.file.path.name.endswith("q8_0.gguf")
    wanted = RunnerSettings(3, 96, 64, 1, unified_kv=True, kv_type="q8_0")
    assert choice.settings == wanted
    assert choice.scheduling.max_stall_s is None
    for context, told in ((1024, False), (2048, True)):  # which the model does not have
        caplog.clear()
        choose(str(pebble_built), ModelOptions(context=context), PlanOptions(), "chat", 1)
        assert ("--context 2,048" in caplog.text) is told


def test_a_broken_file_is_listed_and_another_is_chosen(
    command: Any, pebble_built: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "built"
    shutil.copytree(pebble_built, folder)
    manifest = load_manifest(folder)
    entry = manifest.entry("q4_k_m")
    assert entry is not None
    (folder / entry.path).write_bytes(b"GGUF" + bytes(64))
    one_way = ("--context", "64", "--slots", "2", "--split-kv", "--threads", "1")
    done = command("plan", folder, *one_way)
    assert done.returncode == 0, done.stderr
    assert f"{entry.path}: cannot be read" in done.stdout
    done = command("plan", folder, "--recipe", "q4_k_m")
    assert (done.returncode, done.stdout) == (3, "")


def test_that_nothing_fits_is_told(command: Any, tmp_path: Path) -> None:
    # Two hundred and fifty-six slots of a million tokens fit no machine.
    shape = {"hidden": 4096, "feed_forward": 64, "layers": 64, "heads": 64, "kv_heads": 64}
    path = write_sparse_gguf(tmp_path / "big.gguf", "llama", head_dim=64, vocab=256, **shape)
    done = command("plan", path, "--slots", "256", "--context", "32768")
    assert done.returncode == 4, done.stderr
    assert "What fits: --slots" in done.stderr
