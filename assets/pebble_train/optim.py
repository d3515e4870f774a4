"""Muon for the matrices, AdamW for embeddings and norms, in float32.

torch.optim.Muon orthogonalises in bfloat16, which is very slow on processors without bfloat16 units.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch


def orthogonalise(update: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration on a stack of matrices [n, rows, columns]: pulls all singular values towards 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = update.shape[1] <= update.shape[2]
    x = update if wide else update.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; matrices of one shape are handled in one batched product."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 0.01,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps}
        super().__init__(list(params), defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
            for shape, params in shapes.items():
                looked_ahead = []
                for p in params:
                    state = self.state[p]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(p)
                    state["momentum"].lerp_(p.grad, 1 - group["momentum"])  # type: ignore[arg-type]
                    looked_ahead.append(p.grad.lerp(state["momentum"], group["momentum"]))  # type: ignore[union-attr]
                updates = orthogonalise(torch.stack(looked_ahead), group["steps"])
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for p, u in zip(params, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(u, alpha=-group["lr"] * scale)
