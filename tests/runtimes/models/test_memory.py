"""The estimate against real processes, against llama.cpp's own sums, and what is said of it."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.bench.estimates import memory_check
from quantize.resolve import resolve
from runtimes.errors import OutOfMemoryError
from runtimes.llamacpp import memory as memory_llamacpp
from runtimes.models.memory import (
    checkpoint_words,
    estimate,
    largest_context,
    largest_slots,
    require_fit,
)
from runtimes.models.registry import read_model
from runtimes.onnx import memory as memory_onnx
from runtimes.onnx.graph_file import Initializer, Node, OnnxGraph, read_graph
from runtimes.settings import RunnerSettings
from tests.runtimes.models.sparse_gguf import write_sparse_gguf

MIB = 2**20
# Two loads of the same file differ by this much; Pebble is small enough for it to show.
NOISE = 2 * MIB

# Threads take memory too, little beside a real model: not as many as the machine has cores.
PLAIN = RunnerSettings(threads=2, gpu_layers=0, flash_attention="on")
SETTINGS = (
    replace(PLAIN, slots=1, context=512),
    replace(PLAIN, slots=4, context=1024, batch=256),
)

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="no /proc to measure memory with"
)


@needs_proc
def test_estimates_are_what_processes_take(pebble_file: Path) -> None:
    for row in memory_check(pebble_file, SETTINGS):
        off = abs(row.estimate.total - row.measured)
        assert off <= 0.1 * row.measured + NOISE, row
        assert row.resident >= row.measured


@needs_proc
def test_estimates_of_other_caches(gguf: Path) -> None:
    wide = replace(PLAIN, slots=16, context=1024, batch=64)
    packed = replace(wide, kv_type="q4_0")
    budget = replace(PLAIN, slots=8, context=1024, unified_kv=True, kv_tokens=2048)
    rows = memory_check(gguf, (wide, packed, budget))
    for row in rows:
        assert abs(row.estimate.total - row.measured) <= 0.1 * row.measured + NOISE, row
    first, second, _ = rows
    saved = first.estimate.kv - second.estimate.kv
    assert saved > 20 * MIB
    assert abs((first.measured - second.measured) - saved) <= 0.1 * saved + NOISE


SHAPES = {
    "llama": {"hidden": 576, "feed_forward": 1536, "heads": 9, "kv_heads": 3, "head_dim": 64},
    "qwen3": {"hidden": 512, "feed_forward": 512, "heads": 32, "kv_heads": 4, "head_dim": 128},
    "gemma3": {"hidden": 640, "feed_forward": 2048, "heads": 4, "kv_heads": 1, "head_dim": 256},
}


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("arch", SHAPES)
def test_llama_cpps_own_sums(
    arch: str, flash: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Compute buffer and lengths of the caches, as a load that allocates nothing reports them."""
    extra = {"attention.sliding_window": 512} if arch == "gemma3" else {}
    path = write_sparse_gguf(
        tmp_path / "m.gguf", arch, layers=6, vocab=49152, extra=extra, **SHAPES[arch]
    )
    model = read_model(path)
    for slots, context, batch, unified in (
        (4, 8192, 512, False),
        (8, 1024, 128, True),
        (32, 300, 32, False),
    ):
        caplog.clear()
        buffer, cells = _dry_load(path, slots, context, batch, unified, flash, caplog)
        number, length = (1, slots * context) if unified else (slots, context)
        cache = memory_llamacpp.Cache(slots, number, length, batch, slots, flash)
        said = memory_llamacpp.graph_bytes(model, cache)
        gaps = 0 if flash else 9 * MIB
        assert said == pytest.approx(buffer, rel=0.1, abs=gaps), (slots, context, batch, unified)
        kv = memory_llamacpp.kv_bytes(model, cache, "f16")
        streams = 1 if unified else slots
        full = model.kv_elements * cells[0]
        windowed = model.window_elements * (cells[1] if len(cells) > 1 else 0)
        assert kv == 2 * streams * (full + windowed)


def _dry_load(
    path: Path,
    slots: int,
    context: int,
    batch: int,
    unified: bool,
    flash: bool,
    caplog: pytest.LogCaptureFixture,
) -> tuple[float, list[int]]:
    from runtimes.llamacpp.native import library

    lib = library()
    model_params = lib.llama_model_default_params()
    model_params.no_alloc, model_params.load_mode, model_params.n_gpu_layers = True, 0, 0
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.kv_unified = slots * context, slots, unified
    params.n_batch = params.n_ubatch = batch
    params.n_outputs_max, params.swa_full = slots, False
    params.flash_attn_type = int(flash)  # of llama.h's enum
    with caplog.at_level(logging.DEBUG, logger="runtimes.llamacpp.native"):
        model = lib.llama_model_load_from_file(str(path).encode(), model_params)
        native = lib.llama_init_from_model(model, params)
        assert native
        lib.llama_free(native)
        lib.llama_model_free(model)
    buffer = re.findall(r"compute buffer size = +([\d.]+) MiB", caplog.text)
    windows = re.findall(r"creating +(?:non-)?SWA KV cache, size = (\d+) cells", caplog.text)
    lengths = windows or re.findall(r"n_ctx_seq += (\d+)", caplog.text)[:1]
    if unified and not windows:
        lengths = re.findall(r"n_ctx += (\d+)", caplog.text)[-1:]
    return float(buffer[-1]) * MIB, [int(cells) for cells in lengths]


def test_what_checkpoints_take_is_told(tmp_path: Path) -> None:
    """Held against real ones where there are runners of such models; beside the total."""
    extra = {"attention.sliding_window": 512}
    gemma, llama = ({**SHAPES[name], "layers": 6, "vocab": 256} for name in ("gemma3", "llama"))
    path = write_sparse_gguf(tmp_path / "g.gguf", "gemma3", extra=extra, **gemma)
    model = read_model(path)
    need, short = estimate(model, asked(4, 4096)), estimate(model, asked(4, 100))
    assert need.checkpoint == 512 * (2 * model.window_elements + 12)
    assert short.checkpoint * 512 == need.checkpoint * 100
    assert need.total == need.weights + need.kv + need.compute + need.overhead
    assert checkpoint_words(need, need.total + 8 * 2**30) == (
        "cached prefixes take up to 1.00 GiB more, each checkpoint 2.5 MiB of it"
    )
    assert "up to 0.00 GiB" in checkpoint_words(need, need.total - 1)
    path = write_sparse_gguf(tmp_path / "l.gguf", "llama", **llama)
    assert not checkpoint_words(estimate(read_model(path), asked(4, 4096)), 8 * 2**30)


@pytest.mark.parametrize(("arch", "more", "times"), [("llama", {}, 0), ("gemma3", {}, 5),
    ("gemma3", {"attention.sliding_window_pattern": 3}, 2)])  # fmt: skip
def test_which_layers_keep_a_window(
    tmp_path: Path, arch: str, more: dict[str, int], times: int
) -> None:
    """One of six layers keeps everything, or as the file says; llama.cpp ignores Llama's."""
    extra = {"attention.sliding_window": 16, **more}
    shape = {**SHAPES["llama"], "layers": 12, "vocab": 256}
    model = read_model(write_sparse_gguf(tmp_path / "a.gguf", arch, extra=extra, **shape))
    assert model.window_elements == times * model.kv_elements


def asked(slots: int, context: int, **more: Any) -> RunnerSettings:
    return RunnerSettings(slots=slots, context=context, **more)


@pytest.mark.parametrize(("name", "more"), [("kv_tokens", {"unified_kv": True}), ("batch", {})])
def test_one_number_that_is_too_large_is_what_is_to_be_lowered(
    gguf: Path, name: str, more: dict[str, Any]
) -> None:
    model, flag = read_model(gguf), {"batch": "--batch-tokens"}.get(name, "--kv-tokens")
    few, many = (asked(8, 1024, **more, **{name: number}) for number in (600, 10**6))
    free = estimate(model, few).total + 10**6
    with pytest.raises(OutOfMemoryError, match=flag) as caught:
        require_fit(model, many, free)
    most = int(re.findall(rf"{flag} (\d+)", str(caught.value))[0])
    require_fit(model, replace(many, **{name: most}), free)
    with pytest.raises(OutOfMemoryError):
        require_fit(model, replace(many, **{name: most + 256}), free)


def test_the_largest_settings_fit_and_one_more_does_not(pebble_file: Path) -> None:
    model = read_model(pebble_file)
    free = estimate(model, asked(6, 700)).total + 1000
    assert largest_slots(model, asked(1, 700), free) == 6
    context = largest_context(model, asked(3, 700), free)
    assert estimate(model, asked(3, context)).total <= free
    if context + 256 < model.context_length:
        assert estimate(model, asked(3, context + 256)).total > free
    assert largest_slots(model, asked(1, 700), 1000) == 0


def test_what_fits_is_said_as_flags_and_is_true(pebble_file: Path) -> None:
    model = read_model(pebble_file)
    free = estimate(model, asked(4, 1000)).total
    require_fit(model, asked(4, 1000), free)
    with pytest.raises(OutOfMemoryError, match="What fits") as caught:
        require_fit(model, asked(8, 1000), free)
    advice = re.findall(r"--slots (\d+) --context (\d+)(?: --kv-type (\w+))?", str(caught.value))
    assert len(advice) >= 2
    assert ("4", "1000", "") in advice
    for slots, context, kv_type in advice:
        settings = asked(int(slots), int(context), kv_type=kv_type or "f16")
        assert estimate(model, settings).total <= free
    if model.runtime == "llamacpp":
        assert any(kv_type for _, _, kv_type in advice)
    with pytest.raises(OutOfMemoryError, match="weights alone"):
        require_fit(model, asked(1, 64), model.nbytes // 2)


def test_the_graph_is_read_right(pebble_built: Path) -> None:
    import onnx as reference

    onnx = resolve(pebble_built, recipe="onnx-int4")
    expected = reference.load(onnx / "model.onnx", load_external_data=False).graph
    graph = read_graph(onnx / "model.onnx")
    assert [(n.name, n.kind, n.inputs, n.outputs) for n in graph.nodes] == [
        (n.name, n.op_type, tuple(n.input), tuple(n.output)) for n in expected.node
    ]
    assert {t.name: t.shape for t in graph.initializers.values()} == {
        t.name: tuple(t.dims) for t in expected.initializer
    }
    assert graph.cache_bytes == 4
    assert graph.pruned
    inside = sum(t.nbytes for t in graph.initializers.values())
    on_disk = sum(f.stat().st_size for f in onnx.glob("model.onnx*"))
    assert inside <= on_disk <= inside + (onnx / "model.onnx").stat().st_size + 512 * 4096


def test_what_a_session_copies_is_counted_as_often_as_it_is_there() -> None:
    """Measured on a model of 0.5B, whose weights are large enough to tell; Pebble's are not."""
    sizes = {"tied": 1000, "scales": 100, "table": 5000, "codes": 700, "halves": 20}
    nodes = (
        Node("", "Constant", (), ("flat",)),
        Node("", "MatMulNBits", ("x", "tied", "scales"), ("y",)),
        Node("", "Reshape", ("tied", "flat"), ("embedding",)),
        Node("", "Cast", ("halves",), ("wide",)),
        Node("", "MatMulNBits", ("y", "codes", "wide"), ("u",)),
        Node("", "Gather", ("table", "ids"), ("v",)),
    )
    tensors = {name: Initializer(name, (), size) for name, size in sizes.items()}
    graph = OnnxGraph(nodes, tensors, cache_bytes=4, pruned=True)
    packed_and_folded, with_sums = 2 * sizes["tied"], 2 * sizes["scales"]
    in_half_precision = sizes["codes"] + 2 * (2 * sizes["halves"]) + 2 * sizes["halves"]
    whole = packed_and_folded + with_sums + sizes["table"] + in_half_precision
    assert memory_onnx.weight_bytes(graph) == whole
