"""How much memory a model needs with given settings, known in milliseconds and without loading it.

What is counted is what must be free for the model to run without swapping: all memory that the
process allocates, plus the weights that are read where the file is mapped. It is not the resident
size, which also has pages of the file that were read while loading and never again (weights of
which the runtime has made a copy in another layout); the kernel takes those back without writing
anything. Keys and values are counted for slots that are full to the last token.
Prefixes that an engine keeps beside its slots come on top; ``SchedulerSettings`` bounds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, Unpack

from runtimes.errors import OutOfMemoryError
from runtimes.models.modelfile import ModelFile
from runtimes.settings import KV_TYPES, MOST_SLOTS, KvType, RunnerSettings

DEFAULT_CONTEXT = 4096  # tokens that a slot gets when nobody says; longer ones are for the asking
_LEAST_CONTEXT = 64  # a smaller one is no advice
_BATCH = RunnerSettings().batch


class Layout(TypedDict, total=False):
    """What ``estimate`` takes by name."""

    kv_type: KvType
    batch: int
    unified_kv: bool
    kv_tokens: int | None
    device_sampling: bool
    reproducible: bool


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes. ``compute`` is activations and logits; ``overhead`` the tokenizer and the runtime."""

    weights: int
    kv: int
    compute: int = 0
    overhead: int = 0

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.kv + self.compute + self.overhead

    def to_json(self) -> dict[str, int]:
        """The parts and their sum."""
        return {
            "weights": self.weights,
            "kv": self.kv,
            "compute": self.compute,
            "overhead": self.overhead,
            "total": self.total,
        }


def estimate(
    model: ModelFile,
    slots: int,
    context: int,
    *,
    kv_type: KvType = "f16",
    batch: int = _BATCH,
    unified_kv: bool = False,
    kv_tokens: int | None = None,
    device_sampling: bool = False,
    reproducible: bool = False,
) -> MemoryEstimate:
    """What ``slots`` slots of ``context`` tokens need, with steps of up to ``batch`` tokens.

    ``kv_type``, ``unified_kv``, ``kv_tokens`` (of all slots together, of a unified cache) and
    ``device_sampling`` are llama.cpp's; ONNX graphs fix their own. ``reproducible`` rows take more
    memory on llama.cpp alone. Raises ModelError for an ONNX graph that cannot be read.
    """
    settings = RunnerSettings(
        slots=slots,
        context=context,
        batch=longest_step(slots, context, batch, unified_kv=unified_kv, kv_tokens=kv_tokens),
        unified_kv=unified_kv,
        kv_type=kv_type,
        kv_tokens=kv_tokens,
        device_sampling=device_sampling,
        reproducible=reproducible,
    )
    return model.backend.estimate(model, settings)


def longest_step(
    slots: int, context: int, batch: int, *, unified_kv: bool = False, kv_tokens: int | None = None
) -> int:
    """The most tokens that a step of at most ``batch`` can have: one of each slot; of prompts no
    more than fit the cache, a single one where the slots do not share it.
    """
    room = (kv_tokens or slots * context) if unified_kv else context
    return max(min(batch, room), slots)


def estimate_settings(model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
    """``estimate`` of what a runner would be asked for."""
    return estimate(
        model,
        settings.slots,
        min(settings.context or DEFAULT_CONTEXT, model.context_length),
        kv_type=settings.kv_type,
        batch=settings.batch,
        unified_kv=settings.unified_kv,
        kv_tokens=settings.kv_tokens,
        device_sampling=settings.device_sampling,
        reproducible=settings.reproducible,
    )


def largest_slots(
    model: ModelFile,
    context: int,
    available: int,
    *,
    most: int = MOST_SLOTS,
    **layout: Unpack[Layout],
) -> int:
    """The most slots, up to ``most``, that fit ``available`` bytes; 0 when not even one does."""

    def fits(slots: int) -> bool:
        return estimate(model, slots, context, **layout).total <= available

    return _largest(fits, most)


def largest_context(
    model: ModelFile,
    slots: int,
    available: int,
    **layout: Unpack[Layout],
) -> int:
    """The most tokens a slot, up to the model's own limit, that fit; 0 when not even one does."""

    def fits(context: int) -> bool:
        return estimate(model, slots, context, **layout).total <= available

    return _largest(fits, model.context_length)


def require_fit(
    model: ModelFile,
    slots: int,
    context: int,
    available: int,
    *,
    said: str = "are free",
    **layout: Unpack[Layout],
) -> None:
    """Raise OutOfMemoryError, saying what would fit, if ``available`` bytes are too few.

    ``said`` is what the error says of these bytes.
    """
    need = estimate(model, slots, context, **layout)
    if need.total <= available:
        return
    if need.weights + need.overhead >= available:
        raise OutOfMemoryError(
            f"{model.path} needs {gib(need.weights + need.overhead)} for its weights alone; "
            f"{gib(available)} of memory {said}"
        )
    fits = _advice(model, slots, context, available, layout)
    raise OutOfMemoryError(
        f"{model.path} with {slots:,} slot{'s' if slots > 1 else ''} x {context:,} tokens needs "
        f"{gib(need.total)}; {gib(available)} {said}. "
        + (f"What fits: {', or '.join(fits)}" if fits else "Not even one short slot fits")
    )


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.2f} GiB"


def _advice(
    model: ModelFile, slots: int, context: int, available: int, layout: Layout
) -> list[str]:
    """The largest settings that fit: usual steps where they are enough; else a smaller budget, or
    fewer slots, a smaller context, smaller keys and values.
    """
    kv_type, budget = layout.get("kv_type", "f16"), layout.get("kv_tokens")

    def fits_with(**changed: Unpack[Layout]) -> bool:
        return estimate(model, slots, context, **_with(layout, **changed)).total <= available

    step = _largest(lambda tokens: fits_with(batch=tokens), layout.get("batch", _BATCH))
    if step >= _BATCH:
        return [f"--batch-tokens {step}"]
    if budget is not None:  # it alone says how large the cache is
        most = _largest(lambda tokens: fits_with(kv_tokens=tokens), budget)
        return [f"--kv-tokens {most}"] if most >= _LEAST_CONTEXT else []

    fits = []
    fewer = largest_slots(model, context, available, most=slots, **layout)
    if fewer:
        fits.append(f"--slots {fewer} --context {context}")
    elif (alone := largest_context(model, 1, available, **layout)) >= _LEAST_CONTEXT:
        fits.append(f"--slots 1 --context {alone}")
    shorter = largest_context(model, slots, available, **layout)
    if slots > 1 and shorter >= _LEAST_CONTEXT:
        fits.append(f"--slots {slots} --context {shorter}")
    if "kv_type" in model.backend.knows and model.head_dim % 32 == 0:
        for smaller in KV_TYPES[KV_TYPES.index(kv_type) + 1 :]:
            if fits_with(kv_type=smaller):
                fits.append(f"--slots {slots} --context {context} --kv-type {smaller}")
                break
    return fits


def _with(layout: Layout, **changed: Unpack[Layout]) -> Layout:
    changing = layout.copy()
    changing.update(changed)
    return changing


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` that fits, where every smaller one fits too; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
