"""LoRA adapters beside an ONNX graph: rows of all of them in one pass, loaded and gone again."""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.errors import ModelError
from runtimes.models.registry import read_model
from runtimes.onnx.graph import Graph
from runtimes.onnx.runner import OnnxRunner
from runtimes.runner import Logits, StepRow
from runtimes.settings import MOST_ADAPTERS, RunnerSettings
from tests.adapters import write_adapter

ROWS = 16
# What rounding activations to 8 bits makes of the last bit of a float; measured: 0 to 0.1.
TOLERANCE = 0.4
NAMES = [f"a{seed}" for seed in range(MOST_ADAPTERS)]


@pytest.fixture(scope="module")
def folder(pebble_built: Path) -> Path:
    return resolve(pebble_built, recipe="onnx-int8")


@pytest.fixture(scope="module")
def files(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("adapters")
    made = {name: write_adapter(pebble, where / f"{name}.gguf", int(name[1:])) for name in NAMES}
    modules = {"self_attn.v_proj": "attn_v", "mlp.up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate"}
    made["wide"] = write_adapter(pebble, where / "wide.gguf", 20, modules, rank=9)
    return made


@contextlib.contextmanager
def opened(folder: Path, slots: int = ROWS) -> Iterator[OnnxRunner]:
    settings = RunnerSettings(slots=slots, context=64)
    with contextlib.closing(OnnxRunner(read_model(folder), settings)) as runner:
        yield runner


def load(runner: OnnxRunner, files: dict[str, Path], *names: str) -> None:
    assert runner.adapters is not None
    for name in names:
        runner.adapters.load(name, files[name])


def unload(runner: OnnxRunner, *names: str) -> None:
    assert runner.adapters is not None
    for name in names:
        runner.adapters.unload(name)


def prompt(slot: int) -> list[int]:
    return [1, 40 + slot, 70, 90 + 2 * slot, 33, 200][: 3 + slot % 4]


def prefilled(runner: OnnxRunner, slot: int, adapter: str | None) -> Logits:
    runner.kv.trim(slot, 0)
    row = StepRow(slot, 0, prompt(slot), 1, adapter=adapter)
    return runner.execute((row,))[0].copy()


def decoded(runner: OnnxRunner, adapters: dict[int, str | None]) -> Logits:
    rows = [
        StepRow(slot, len(prompt(slot)), [50 + slot], 1, adapter=name)
        for slot, name in adapters.items()
    ]
    return runner.execute(rows).copy()


def logits(runner: OnnxRunner, slot: int, adapter: str | None) -> Logits:
    """After a prompt and after one more token."""
    first = prefilled(runner, slot, adapter)
    return np.stack([first, *decoded(runner, {slot: adapter})])


def inputs(runner: OnnxRunner) -> set[str]:
    return {one.name for one in runner._steps._graph.session.get_inputs()}


def test_rows_of_all_adapters_go_in_one_pass(folder, files, monkeypatch):
    wanted = dict(enumerate([None, *NAMES, None, *reversed(NAMES[1:])]))
    assert len(wanted) == ROWS + 1
    del wanted[ROWS]
    alone = {}
    with opened(folder) as runner:
        for name in (None, *NAMES):
            if name:
                load(runner, files, name)
            for slot in (slot for slot, used in wanted.items() if used == name):
                alone[slot] = logits(runner, slot, name)
            if name:
                unload(runner, name)
    with opened(folder) as runner:
        load(runner, files, *NAMES)
        for slot, name in wanted.items():
            assert np.abs(prefilled(runner, slot, name) - alone[slot][0]).max() < TOLERANCE
        passes, run = [], Graph.run
        monkeypatch.setattr(Graph, "run", lambda *given: (passes.append(1), run(*given)))
        found = decoded(runner, wanted)
        assert len(passes) == 1
        away = [np.abs(one - alone[slot][1]).max() for slot, one in enumerate(found)]
        assert max(away) < TOLERANCE
        # Each of them says something of its own.
        others = [np.abs(alone[slot][1] - alone[0][1]).max() for slot in range(1, ROWS - 7)]
        assert min(others) > 3 * TOLERANCE


def changed(path: Path, out: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    assert len(old) == len(new)
    out.write_bytes(data.replace(old, new))
    return out


def test_what_does_not_fit_is_refused_and_nothing_is_lost(folder, files, gguf, tmp_path):
    good = files["a0"]
    data = good.read_bytes()
    name = b"blk.0.attn_q.weight.lora_a"
    at = data.index(name) + len(name) + 4
    columns = struct.unpack_from("<Q", data, at)[0]
    smaller = tmp_path / "smaller.gguf"
    smaller.write_bytes(data[:at] + struct.pack("<Q", columns // 2) + data[at + 8 :])
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[:-5000])
    cases = {
        changed(good, tmp_path / "arch", b"llama", b"qwen2"): "which is llama: it is for qwen2",
        changed(good, tmp_path / "kind", b"lora\x12", b"l0ra\x12"): "is no LoRA adapter",
        changed(good, tmp_path / "layer", b"blk.5.attn_q", b"blk.9.attn_q"): "changes blk.9.attn_q",
        changed(
            good, tmp_path / "odd", b"blk.5.attn_q.weight.lora_b", b"blk.7" + name[5:-1] + b"b"
        ): "is no part of an adapter, or missing",
        smaller: f"blk.0.attn_q is {columns}x{columns} there.* for {columns}x{columns // 2}",
        cut: "truncated",
        gguf: "is no LoRA adapter",
        folder / "model.onnx": "not a GGUF file",
    }
    with opened(folder, 2) as runner:
        assert runner.adapters is not None
        plain, before = inputs(runner), logits(runner, 0, None)
        for path, said in cases.items():
            with pytest.raises(ModelError, match=said):
                runner.adapters.load("bad", path)
        assert runner.adapters.names == frozenset()
        assert inputs(runner) == plain
        assert np.array_equal(logits(runner, 0, None), before)


def test_slots_and_adapters_stay_as_they_are_whatever_comes_and_goes(folder, files):
    with opened(folder, 4) as runner:
        plain, before = inputs(runner), logits(runner, 0, None)
        load(runner, files, "a1")
        alone = logits(runner, 1, "a1")
        prefilled(runner, 0, None)
        load(runner, files, "a0", "wide")  # one has more ranks, and other matrices
        assert np.array_equal(decoded(runner, {0: None})[0], before[1])
        unload(runner, "a0")
        assert np.abs(logits(runner, 1, "a1") - alone).max() < TOLERANCE
        unload(runner, "wide", "a1")
        assert inputs(runner) == plain
        assert np.array_equal(logits(runner, 0, None), before)


def test_without_its_weights_the_graph_is_not_opened_anew(folder, files, tmp_path):
    """The one that was open is tried again, and says what is wrong."""
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    with opened(copy, 2) as runner:
        (copy / "model.onnx.data").rename(copy / "gone")
        with pytest.raises(ModelError, match="cannot load"):
            load(runner, files, "a0")
        (copy / "gone").rename(copy / "model.onnx.data")
        load(runner, files, "a0")
        assert logits(runner, 0, "a0").any()


def test_a_folder_of_links_takes_adapters_too(
    folder: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    """As caches of the hub have them; where its weights lie is checked by ONNX Runtime."""
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    with opened(tmp_path, slots=1) as runner:
        load(runner, files, "a0")
        assert runner.adapters is not None
        assert runner.adapters.names == {"a0"}
