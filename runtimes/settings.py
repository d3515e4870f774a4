"""Settings of runner and scheduler. Imports nothing native."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from runtimes.errors import RequestError

# Type of keys and values in llama.cpp's cache, or "KEYS:VALUES" where they have types of their own.
KvType = str
# Bits of an element, scales of its block included (ggml-common.h); the largest first.
KV_BITS = {"f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5}
KV_BITS |= {"q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5}
KV_HELP = f"one of {', '.join(KV_BITS)}; or two, as q8_0:q4_0, of keys and of values"
FlashAttention = Literal["auto", "on", "off"]
# Rotary positions of a longer context than the model's: "KIND:FACTOR", as "yarn:4".
Rope = str
ROPE_HELP = "yarn:FACTOR or linear:FACTOR, with a factor above 1 and up to 64"
# Where reproducible prompts are cut. Steps of 128 tokens are nearly as fast a token as longer ones;
# of a prompt that begins like another one up to so many common tokens are computed again.
PROMPT_CHUNK = 128
SCORED_CHUNK = 64  # prompt tokens whose log-probabilities are wanted that go in at a time
MOST_THREADS = 512  # ggml.h's GGML_MAX_N_THREADS: it aborts with more
MOST_ADAPTERS = 8  # that may be loaded beside a model
MOST_SLOTS = 256  # llama.cpp's LLAMA_MAX_SEQ


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Settings that the engine asks of a runner; ``None`` lets the runner choose."""

    slots: int = 4
    context: int | None = None  # tokens per slot
    batch: int = 512  # the most tokens in one step
    threads: int | None = None
    gpu_layers: int = -1
    device: str = "auto"  # "auto", "cpu", or a device's name as `ingot doctor` lists it
    extra_buffers: bool = True  # llama.cpp may repack weights for the processor's special kernels
    # llama.cpp's slots share one cache: steps may mix prefill and decode in any order, but
    # attention walks every slot's cells, so that rounding depends on a row's companions.
    unified_kv: bool = False
    kv_type: KvType = "f16"  # of llama.cpp
    # llama.cpp's kernel of attention; "auto" is the one that the self-test found faster here behind
    # a long text, and on a GPU llama.cpp's own choice. Smaller types of keys and values need "on".
    flash_attention: FlashAttention = "auto"
    rope: Rope | None = None  # of llama.cpp
    context_shift: bool = False  # drop a conversation's oldest tokens when its slot is full
    # What all slots of a shared cache may hold together (None: slots x context), so that many short
    # rows can run where as many long ones would not fit.
    kv_tokens: int | None = None
    scored: int = 1  # positions that Runner.score may do at a time, each with a row of logits
    # A row's likeliest tokens are looked for where its logits are computed, so that only these are
    # copied from a GPU.
    device_sampling: bool = False
    # A row is computed in the same way whatever else runs, has run or is cached: its logits are
    # then the same to the last bit. Not with unified_kv.
    reproducible: bool = False
    draft: Path | None = None  # a smaller model file beside, whose guesses the engine may verify


def kv_pair(kind: KvType) -> tuple[str, str]:
    """The types of keys and of values. Raises RequestError for one that there is not."""
    keys, _, values = kind.partition(":")
    for one in (keys, values or keys):
        if one not in KV_BITS:
            raise RequestError(f"{kind!r} is not {KV_HELP}")
    return keys, values or keys


def kv_bits(kind: KvType) -> float:
    """Bits of an element, over keys and values, of which there are as many."""
    return sum(KV_BITS[one] for one in kv_pair(kind)) / 2


def rope_scaling(rope: Rope) -> tuple[str, float]:
    """The kind of scaling and the factor by which the context grows. Raises RequestError for what
    is neither."""
    kind, _, factor = rope.partition(":")
    try:
        times = float(factor)
    except ValueError:
        times = 0.0
    if kind not in ("yarn", "linear") or not 1 < times <= 64:
        raise RequestError(f"{rope!r} is not {ROPE_HELP}")
    return kind, times


def outputs_at_once(settings: RunnerSettings, slots: int) -> int:
    """Rows of logits that a step may ask for: one a slot, and those of a scored prompt."""
    chunk = PROMPT_CHUNK if settings.reproducible else min(SCORED_CHUNK, settings.batch)
    return max(slots - 1 + chunk, settings.scored)


Strategy = Literal["continuous", "static", "bucketed", "sequential"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How an engine chooses what runs next."""

    strategy: Strategy = "continuous"
    # How long prefill may keep decoding rows waiting at a time; None: until all admitted prompts
    # are in, best for throughput.
    max_stall_s: float | None = 0.5
    aging_s: float = 10.0  # a request overtakes those one priority above that come so much later
    batch_timeout_s: float = 0.05  # how long strategies other than continuous wait for a batch
    prefix_cache: bool = True
    # Several tokens of a row may go in at once: what its constraint forces, and guesses, where they
    # pay. The answers are the same, but for near-ties: logits are computed in other company.
    speculation: bool = False
    # Of keys and values that are kept for later prompts beside the slots; None: an eighth of the
    # free memory, 2 GiB at most.
    prefix_bytes: int | None = None
    # About how long a step of prefill may take: a request that is cancelled ends after it, and none
    # may look like a hang, however large the model.
    longest_step_s: float = 20.0
