"""The recorded logits of the self-test, computed once more in NumPy from the same files."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtimes.llamacpp.source import sdist_path
from runtimes.machine import selftest_child
from runtimes.machine.selftest import _LEAST_SIMILARITY
from runtimes.models.registry import backend, read_model
from tests.runtimes.machine import tiny_gguf, tiny_onnx

Array = npt.NDArray[np.float32]


def rotate(x: Array, interleaved: bool) -> Array:
    """Rotary embedding of [positions, heads, size]."""
    positions, _, size = x.shape
    angle = np.outer(np.arange(positions), 10000.0 ** -(np.arange(0, size, 2) / size))[:, None]
    cos, sin = np.cos(angle), np.sin(angle)
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def norm(x: Array) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)


def forward(
    weights: dict[str, Array], layers: int, tokens: list[int], size: int, interleaved: bool
) -> Array:
    """Logits of a llama model at every position; norms have weights of one."""
    x = weights["token_embd"][tokens]
    mask = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in range(layers):
        w = {n: weights[f"blk.{layer}.{n}"] for n in ("attn_q", "attn_k", "attn_v", "attn_output")}
        q, k, v = (
            (norm(x) @ w[n].T).reshape(len(tokens), -1, size)
            for n in ("attn_q", "attn_k", "attn_v")
        )
        q, k = rotate(q, interleaved), rotate(k, interleaved)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + mask
        chance = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chance /= chance.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", chance, v).reshape(len(tokens), -1)
        x = x + mixed @ w["attn_output"].T
        gate, up, down = (weights[f"blk.{layer}.ffn_{n}"] for n in ("gate", "up", "down"))
        g = norm(x) @ gate.T
        x = x + (g / (1 + np.exp(-g)) * (norm(x) @ up.T)) @ down.T
    return norm(x) @ weights["output"].T


def expected(weights: dict[str, Array], layers: int, size: int, interleaved: bool) -> Array:
    """What ``exercise`` should collect: logits at the end of each row that wants them."""
    vocabulary = len(weights["token_embd"])
    plans = list(selftest_child._plans(vocabulary))
    longest = 1 + max(r.position + len(r.tokens) for plan in plans for r in plan)
    full = {
        slot: forward(
            weights, layers, selftest_child._tokens(slot, longest, vocabulary), size, interleaved
        )
        for slot in range(selftest_child.SLOTS)
    }
    return np.array(
        [
            full[row.slot][row.position + len(row.tokens) - 1]
            for plan in plans
            for row in plan
            if row.logits
        ],
        np.float32,
    )


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """llama.cpp's own reader of its formats, from the source that the build is made of."""
    folder = tmp_path_factory.mktemp("gguf")
    with tarfile.open(sdist_path(), "r|*") as archive:
        for member in archive:
            if "/vendor/llama.cpp/gguf-py/gguf/" in member.name:
                archive.extract(member, folder, filter="data")
            elif any(folder.iterdir()):
                break  # they lie together
    (package,) = folder.glob("*/vendor/llama.cpp/gguf-py")
    sys.path.insert(0, str(package))
    import gguf

    yield gguf
    sys.path.remove(str(package))


def recorded(runtime: str) -> Array:
    logits: Array = np.load(backend(runtime).selftest.with_name("logits.npy"))
    return logits


def test_the_recorded_logits_of_llamacpp_are_right(gguf: Any) -> None:
    reader = gguf.GGUFReader(backend("llamacpp").selftest)
    weights = {
        t.name.removesuffix(".weight"): gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        for t in reader.tensors
        if "norm" not in t.name
    }
    assert all(0.5 < w.std() * w.shape[1] ** 0.5 < 2 for w in weights.values())
    right = expected(weights, layers=1, size=64, interleaved=True)
    assert selftest_child.compare(right, recorded("llamacpp")) > 0.999


def dequantize(constants: dict[str, Any], name: str) -> Array:
    """MatMulNBits' weights: the lower nibble first, the zero point in the middle."""
    quants = constants[f"{name}.quants"]
    scales = constants[f"{name}.scales"].reshape(quants.shape[0], quants.shape[1], 1)
    if quants.shape[2] == 16:  # 32 weights in 16 bytes
        values = np.stack([quants & 15, quants >> 4], axis=-1).reshape(*quants.shape[:2], 32)
        centred = values.astype(np.float32) - 8
    else:
        centred = quants.astype(np.float32) - 128
    return (centred * scales).reshape(quants.shape[0], -1)


def test_the_recorded_logits_of_onnx_are_right() -> None:
    import onnx

    folder = backend("onnx").selftest.parent
    graph = onnx.load(folder / "model.onnx").graph
    constants = {c.name: onnx.numpy_helper.to_array(c) for c in graph.initializer}
    names = {
        "blk.0.attn_q": "query",
        "blk.0.attn_k": "key",
        "blk.0.attn_v": "value",
        "blk.0.attn_output": "attention_output",
        "blk.0.ffn_gate": "gate",
        "blk.0.ffn_up": "up",
        "blk.0.ffn_down": "down",
        "output": "logits",
    }
    weights = {ours: dequantize(constants, theirs) for ours, theirs in names.items()}
    weights["token_embd"] = constants["table"].astype(np.float32)
    right = expected(weights, layers=1, size=16, interleaved=False)
    assert selftest_child.compare(right, recorded("onnx")) > 0.999


def test_the_committed_models_are_those_that_the_scripts_make(tmp_path: Path) -> None:
    graph = backend("onnx").selftest.read_bytes()
    assert graph == tiny_onnx.build().SerializeToString()
    tiny_gguf.write_tiny_gguf(tmp_path / "tiny.gguf")
    gguf = backend("llamacpp").selftest.read_bytes()
    assert gguf == (tmp_path / "tiny.gguf").read_bytes()
    assert len(graph) < 50_000
    assert len(gguf) < 400_000


def test_one_damaged_matrix_is_noticed(gguf: Any, tmp_path: Path) -> None:
    """The tolerance tells a wrong kernel from rounding: lose half of the rows of any one matrix."""
    from dataclasses import replace

    from runtimes.llamacpp.runner import LlamaRunner

    path = tmp_path / "tiny.gguf"
    whole = backend("llamacpp").selftest.read_bytes()
    path.write_bytes(whole)
    settings = replace(selftest_child.exercise_settings(backend("llamacpp"), False), threads=1)
    places = [
        (t.name, int(t.data_offset), int(t.n_bytes))
        for t in gguf.GGUFReader(path).tensors
        if "norm" not in t.name
    ]
    for name, offset, size in places:
        half = size // 2
        path.write_bytes(whole[:offset] + bytes(half) + whole[offset + half :])
        model = read_model(path)
        runner = LlamaRunner(model, settings)
        logits = selftest_child.exercise(runner, model.vocab_size)
        runner.close()
        assert selftest_child.compare(logits, recorded("llamacpp")) < _LEAST_SIMILARITY - 0.02, name
