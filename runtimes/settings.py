"""What is asked of a runner. Imports nothing native."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KvType = Literal["f16", "q8_0", "q4_0"]
KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0", "q4_0")
MOST_THREADS = 512  # ggml.h's GGML_MAX_N_THREADS: it aborts with more


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What the engine asks of a runner; ``None`` lets the runner choose.

    ``context`` is tokens per slot, ``batch`` the most tokens in one step, ``extra_buffers`` whether
    llama.cpp may repack weights for the processor's special kernels, ``unified_kv`` whether its
    slots share one cache: steps may then mix prefill and decode in any order, but attention walks
    every slot's cells, so that rounding depends on a row's companions. ``kv_type`` is the
    type of llama.cpp's keys and values; ``kv_tokens`` is what all slots of a shared cache may hold
    together (None: ``slots`` x ``context``), so that many short rows can run where as many long
    ones would not fit; ``context_shift`` drops a conversation's oldest tokens when
    its slot is full, where the runtime can. ``scored`` is how many positions ``Runner.score`` may
    do at a time, each with room for a row of logits. ``device_sampling`` lets llama.cpp look for a
    row's likeliest tokens where it computes the logits, so that only these are copied from a GPU.
    """

    slots: int = 4
    context: int | None = None
    batch: int = 512
    threads: int | None = None
    gpu_layers: int = -1
    extra_buffers: bool = True
    unified_kv: bool = False
    kv_type: KvType = "f16"
    context_shift: bool = False
    kv_tokens: int | None = None
    scored: int = 1
    device_sampling: bool = False


Strategy = Literal["continuous", "static", "bucketed", "sequential"]
STRATEGIES: tuple[Strategy, ...] = ("continuous", "static", "bucketed", "sequential")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How an engine chooses what runs next.

    ``max_stall_s`` is how long prefill may keep decoding rows waiting at a time (None: until all
    admitted prompts are in, best for throughput). A request overtakes those of one priority above
    it that arrive ``aging_s`` later. ``batch_timeout_s`` is how long the strategies other than
    continuous wait for a batch to fill. ``prefix_bytes`` bounds the keys and values that are kept
    for later prompts beside the slots (None: an eighth of the free memory, 2 GiB at most).
    """

    strategy: Strategy = "continuous"
    max_stall_s: float | None = 0.5
    aging_s: float = 10.0
    batch_timeout_s: float = 0.05
    preempt: bool = True
    prefix_cache: bool = True
    prefix_bytes: int | None = None
