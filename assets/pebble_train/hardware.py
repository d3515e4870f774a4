"""Which device to train on, and whether bfloat16 pays there."""

from __future__ import annotations

from pathlib import Path

import torch


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """bfloat16 where the hardware multiplies it; elsewhere it is emulated and tens of times slower."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else None
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return torch.bfloat16 if "avx512_bf16" in flags or "amx_bf16" in flags else None
