"""Run in child processes, which have torch: the sweep, and the same by one plain backward pass."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantize.allocate.moments import _windows, write_moments
from quantize.allocate.solve import Unit
from quantize.allocate.sweep import Matrix, _watch, sweep
from quantize.allocate.types import gguf_unit
from quantize.quality import float_child
from quantize.quality.float_child import load_network
from quantize.source import open_source
from quantize.source.shapes import gguf_name


def killed_unit(matrix: Path, tensor: Matrix, tokens: int) -> Unit:
    """As `gguf_unit`, up to a tensor of the first layer."""
    if tensor.name.startswith("blk.0."):
        os.kill(os.getpid(), signal.SIGKILL)
    return gguf_unit(matrix, tensor, tokens)


class Killed(Exception):
    pass


def swept(
    model: Path, windows: Sequence[Sequence[int]], folder: Path, killed_after: int = 0
) -> dict[str, Any]:
    """Weights, Fisher information and roundings by name, of weights that are widened as they are
    used; killed and resumed on the way."""
    float_child._SMALL = 0  # all of them: it is a child process
    found: dict[str, Any] = {}
    done = 0

    def rate(matrix: Matrix) -> None:
        assert matrix.name not in found or killed_after
        found[matrix.name] = (matrix.weight, matrix.fisher, matrix.activations)

    def finished(parts: int) -> None:
        nonlocal done
        done = parts
        if parts == killed_after:
            raise Killed

    network = load_network(open_source(str(model)), wide=False)
    try:
        sweep(network, windows, folder, 0, rate, finished)
    except Killed:
        sweep(
            load_network(open_source(str(model)), wide=False),
            windows,
            folder,
            done,
            rate,
            lambda _: None,
        )
    return found


def plain(model: Path, windows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """F by the network's own names of parameters, all at once."""
    import torch

    network = load_network(open_source(str(model)), wide=True)
    generator = torch.Generator().manual_seed(20260101)
    matrices = {name: p for name, p in network.named_parameters() if p.ndim > 1}
    found = {name: np.zeros(p.shape, np.float64) for name, p in matrices.items()}
    for ids in windows:
        logits = network(torch.tensor([ids]), use_cache=False).logits[0]
        drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
        torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
        for name, p in matrices.items():
            if p.grad is not None:
                found[name] += p.grad.double().numpy() ** 2
        network.zero_grad()
    return found


def both(model: Path, windows: Sequence[Sequence[int]], folder: Path) -> tuple[Any, Any]:
    return plain(model, windows), swept(model, windows, folder, killed_after=2)


def moments_at_once_and_by_layers(
    model: Path, text: Path, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Moments by the names of tensors: of the whole network at once, and as they are written."""
    import torch

    source = open_source(str(model))
    network = load_network(source, wide=True)
    sums: dict[str, Any] = {}
    rows: dict[str, int] = {}

    def add(name: str, inputs: Any) -> None:
        x = inputs.flatten(0, -2).double()
        sums[name] = sums.get(name, 0) + x.T @ x
        rows[name] = rows.get(name, 0) + len(x)

    for name, module in network.named_modules():
        tensor = gguf_name(f"{name}.weight")
        if isinstance(module, torch.nn.Linear) and tensor.startswith("blk."):
            module.register_forward_pre_hook(lambda _m, args, tensor=tensor: add(tensor, args[0]))
    with torch.inference_mode():
        for window in _windows(source, text, network.config):
            network(torch.tensor([window]), use_cache=False)
    whole = {name: (total / rows[name]).numpy() for name, total in sums.items()}
    whole |= {name.replace("attn_q.", "attn_qkv."): whole[name] for name in whole}
    write_moments(source, text, folder)
    return whole, {path.stem: np.load(path) for path in folder.glob("*.npy")}


def rounding_of_one_linear() -> tuple[float, float]:
    """What `_watch` says that 8-bit inputs of a last layer cost, and the divergence itself."""
    import contextlib

    import torch

    torch.manual_seed(0)
    inputs, head = torch.randn(4096, 256), torch.nn.Linear(256, 64, bias=False)
    head.weight.data.normal_(0, 0.3)
    cost: dict[int, float] = {}
    with contextlib.ExitStack() as hooks:
        _watch(hooks, head, cost)
        leaf = inputs.clone().requires_grad_(True)
        logits = head(leaf)
        drawn = torch.multinomial(logits.detach().softmax(-1), 1)[:, 0]
        torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
    groups = inputs.unflatten(1, (-1, 32))
    scale = groups.abs().amax(2, keepdim=True) / 127
    moved = ((groups / scale).round() * scale).flatten(1)
    with torch.no_grad():
        p, q = (head(x).log_softmax(-1) for x in (inputs, moved))
    return cost[32], float((p.exp() * (p - q)).sum())
