"""How much memory a model needs with given settings, known in milliseconds and without loading it.

What is counted is what must be free for the model to run without swapping: all memory that the
process allocates, plus the weights that are read where the file is mapped. It is not the resident
size, which also has pages of the file that were read while loading and never again (weights of
which the runtime has made a copy in another layout); the kernel takes those back without writing
anything. Keys and values are counted for slots that are full to the last token.
Prefixes and checkpoints that an engine keeps beside its slots come on top: ``prefix_room``.
"""

import logging
from bisect import bisect_right
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

from runtimes.backend import MemoryEstimate
from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of, read_model
from runtimes.settings import MOST_SLOTS, RunnerSettings

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT = 4096  # tokens that a slot gets when nobody says; longer ones on request
LEAST_CONTEXT = 64  # a smaller one is not worth suggesting
_BATCH = RunnerSettings().batch
_PREFIX_SHARE, _MOST_PREFIX_BYTES = 1 / 8, 2 * 2**30


def prefix_room(free: int) -> int:
    """Bytes of cached prefixes and checkpoints that an engine may keep; ``free`` are left by it."""
    return int(min(_MOST_PREFIX_BYTES, max(free, 0) * _PREFIX_SHARE))


def with_defaults(model: ModelFile, settings: RunnerSettings) -> RunnerSettings:
    """With a context that the model has, and the most tokens that a step can really have: one of
    each slot; of prompts no more than fit the cache, a single one where the slots do not share it.
    """
    context = min(settings.context or DEFAULT_CONTEXT, model.context_length)
    shared = settings.kv_tokens or settings.slots * context
    room = shared if settings.unified_kv else context
    return replace(settings, context=context, batch=max(min(settings.batch, room), settings.slots))


def estimate(model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
    """Estimate the memory of a runner with these settings.

    Raises ModelError for an ONNX graph that cannot be read.
    """
    settings = with_defaults(model, settings)
    need = backend_of(model).estimate(model, settings)
    if settings.draft is None:
        return need
    other = estimate(draft_file(settings.draft), draft_settings(settings))
    parts = (getattr(need, part.name) + getattr(other, part.name) for part in fields(need))
    return MemoryEstimate(*parts)


def draft_file(path: Path) -> ModelFile:
    """Read the draft's header, cached; raises ModelError. An estimate is asked for often."""
    if not path.exists():
        raise ModelError(f"there is no draft model at {path}")
    return _read_draft(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_draft(path: Path, changed: int) -> ModelFile:
    return read_model(path)


def draft_settings(settings: RunnerSettings) -> RunnerSettings:
    """Return the settings of a model's draft, from the model's own settings: as many slots, as
    long."""
    knows, plain = backend_of(draft_file(settings.draft)).knows if settings.draft else (), {}
    for name in ("unified_kv", "kv_type", "kv_tokens", "rope"):
        if name not in knows:
            plain[name] = getattr(RunnerSettings(), name)
    return replace(
        settings,
        draft=None,
        scored=1,
        context_shift=False,
        device_sampling=False,
        reproducible=False,
        **plain,
    )


def spare_draft(
    model: ModelFile, settings: RunnerSettings, available: int, *, said: str = "are free"
) -> RunnerSettings:
    """The settings, without their draft where it does not fit beside the model; that is logged."""
    if settings.draft is None:
        return settings
    need = estimate(model, settings).total
    if need <= available:
        return settings
    logger.warning(
        "without the draft %s: it and the model need %s, and %s %s",
        settings.draft.name,
        gib(need),
        gib(available),
        said,
    )
    return replace(settings, draft=None)


def largest_slots(
    model: ModelFile, settings: RunnerSettings, available: int, most: int = MOST_SLOTS
) -> int:
    """The most slots, up to ``most``, that fit ``available`` bytes; 0 when not even one does."""
    return _largest(model, settings, available, "slots", most)


def largest_context(model: ModelFile, settings: RunnerSettings, available: int) -> int:
    """The most tokens a slot, up to the model's own limit, that fit; 0 when not even one does."""
    return _largest(model, settings, available, "context", model.context_length)


def require_fit(
    model: ModelFile, settings: RunnerSettings, available: int, *, said: str = "are free"
) -> None:
    """Raise OutOfMemoryError, saying what would fit, if ``available`` bytes are too few.

    ``said`` is what the error says of these bytes.
    """
    settings = with_defaults(model, settings)
    need = estimate(model, settings)
    if need.total <= available:
        return
    if need.weights + need.overhead >= available:
        raise OutOfMemoryError(
            f"{model.path} needs {gib(need.weights + need.overhead)} for its weights alone; "
            f"{gib(available)} of memory {said}"
        )
    fits = _advice(model, settings, available)
    slots = settings.slots
    raise OutOfMemoryError(
        f"{model.path} with {slots:,} slot{'s' if slots > 1 else ''} x {settings.context:,} tokens "
        f"needs {gib(need.total)}; {gib(available)} {said}. "
        + (f"What fits: {', or '.join(fits)}" if fits else "Not even one short slot fits")
    )


def checkpoint_words(need: MemoryEstimate, free: int) -> str:
    """Memory that checkpoints take beside the total, for people; empty where there are none."""
    if not need.checkpoint:
        return ""
    room, each = gib(prefix_room(free - need.total)), need.checkpoint / 2**20
    return f"cached prefixes take up to {room} more, each checkpoint {each:,.1f} MiB of it"


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.2f} GiB"


def _advice(model: ModelFile, settings: RunnerSettings, available: int) -> list[str]:
    """The largest settings that fit; usual steps where these are enough."""
    slots, context, budget = settings.slots, settings.context, settings.kv_tokens
    step = _largest(model, settings, available, "batch", settings.batch)
    if step >= _BATCH:
        return [f"--batch-tokens {step}"]
    if budget is not None:  # it alone says how large the cache is
        most = _largest(model, settings, available, "kv_tokens", budget)
        return [f"--kv-tokens {most}"] if most >= LEAST_CONTEXT else []

    fits = []
    alone = replace(settings, slots=1)
    if fewer := largest_slots(model, settings, available, slots):
        fits.append(f"--slots {fewer} --context {context}")
    elif (longest := largest_context(model, alone, available)) >= LEAST_CONTEXT:
        fits.append(f"--slots 1 --context {longest}")
    shorter = largest_context(model, settings, available)
    if slots > 1 and shorter >= LEAST_CONTEXT:
        fits.append(f"--slots {slots} --context {shorter}")
    if "kv_type" in backend_of(model).knows and model.packs_kv:
        for smaller in ("q8_0", "q4_0"):
            if estimate(model, replace(settings, kv_type=smaller)).total <= available:
                fits.append(f"--slots {slots} --context {context} --kv-type {smaller}")
                break
    return fits


def _largest(
    model: ModelFile, settings: RunnerSettings, available: int, name: str, most: int
) -> int:
    """The largest value of a setting, up to ``most``, that fits; 0 when none does."""

    def need(value: int) -> int:
        changed: RunnerSettings = replace(settings, **{name: value})  # type: ignore[arg-type]
        return estimate(model, changed).total

    return bisect_right(range(1, most + 1), available, key=need)
