"""One budget of memory and divergence: the file of a model, the types of its keys and values, and
the context that keep both. Divergences are those that `quantize` and `ingot measure` have measured;
what nobody has measured is named, and never chosen.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.figures import aligned
from app.models.catalog import entry_of
from app.models.planning import note_context, plan_files
from app.options import ModelOptions, PlanOptions
from quantize.cards import known_cards
from quantize.disk import human
from quantize.errors import MissedTargetError
from quantize.manifest import Fidelity
from quantize.recipes import target_of
from runtimes.backend import MemoryEstimate
from runtimes.errors import OutOfMemoryError, RequestError
from runtimes.models.memory import DEFAULT_CONTEXT, LEAST_CONTEXT, estimate, largest_context
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of
from runtimes.settings import KV_BITS, KvType, RunnerSettings, kv_pair


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """A file, the divergence of its weights, and what types of keys and values add to it, as it was
    measured behind ``depth`` tokens."""

    file: ModelFile
    weights: Fidelity
    added: Mapping[KvType, float]
    depth: int


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """A measured file with a type of keys and values and a context, and the memory of all of it."""

    of: MeasuredFile
    kv_type: KvType
    context: int
    memory: MemoryEstimate

    @property
    def kl(self) -> float:
        """Divergence of weights, keys and values."""
        return self.of.weights.kl_mean + self.of.added[self.kv_type]

    def __str__(self) -> str:
        kept = f", keys and values {self.kv_type}" if self.kv_type != "f16" else ""
        return f"{self.of.file.path.name}{kept}, {self.context:,} tokens"


def choose_within(
    model: str, options: ModelOptions, settings: PlanOptions, fits: str | None, max_kl: str | None
) -> tuple[BudgetChoice, list[str]]:
    """Choose, of what keeps the bounds and has the longest context, what loses least, without
    ``fits`` the smallest one; and in words what was not measured. Raises OutOfMemoryError or
    MissedTargetError, which say what is nearest, or RequestError."""
    memory = math.inf if fits is None else target_of("memory", fits).value
    most = math.inf if max_kl is None else target_of("kl", max_kl).value
    files = plan_files(model, options, settings.bits or "any")
    missing = [f"{name}: {why}" for name, why in files.unreadable]
    found: list[BudgetChoice] = []
    for one in _measured(files.models, missing):
        for kind in one.added:
            if kv_pair(kind) != kv_pair(settings.kv_type or kind):
                continue
            asked, context = RunnerSettings(slots=1, kv_type=kind), options.context
            if context is None and fits and max_kl:
                context = max(largest_context(one.file, asked, int(memory)), LEAST_CONTEXT)
            context = min(context or DEFAULT_CONTEXT, one.file.context_length)
            need = estimate(one.file, replace(asked, context=context))
            found.append(BudgetChoice(one, kind, context, need))
    unknown = f"Not measured: {'; '.join(missing) or 'nothing'}"
    if not found:
        raise RequestError(
            "nothing to choose is measured; `ingot measure FILE --against ORIGINAL` measures it."
            f" {unknown}"
        )
    near = [one for one in found if one.kl <= most]
    if kept := [one for one in near if one.memory.total <= memory]:
        choice = min(kept, key=lambda one: (-one.context, one.kl * bool(fits), one.memory.total))
        note_context(options, choice.of.file)
        return choice, missing
    best = min(near or found, key=lambda one: one.memory.total if near else one.kl)
    raise (OutOfMemoryError if near else MissedTargetError)(
        f"nothing keeps the bounds; {best} takes {human(best.memory.total)} of memory and has a KL"
        f" divergence of {best.kl:.3g}. Give more memory, a larger --max-kl or a shorter --context,"
        f" or make a file: `quantize ORIGINAL --fits`. {unknown}"
    )


def _measured(files: Sequence[ModelFile], missing: list[str]) -> Iterator[MeasuredFile]:
    """The files that were measured as the first of them was; ``missing`` gets what was not."""
    cards, first = known_cards([file.path for file in files]), None
    for file in files:
        name, card, entry = file.path.name, cards.get(file.path), entry_of(file.path)
        weights, key, made = entry.fidelity, entry.measurement, entry.allocation
        added, depth = {"f16": 0.0}, 0
        if made and made.cache_loss is not None:
            added[made.cache], depth = made.cache_loss, made.cache_tokens
        if card:
            if weights is None:
                weights, key = card.entry.fidelity, card.key
            if full := card.caches.get("f16"):
                kinds, depth = card.caches.items(), card.cache_tokens
                added = {kind: max(one.kl_mean - full.kl_mean, 0.0) for kind, one in kinds}
        if weights is None:
            missing.append(f"{name}: how far it is from the original")
        elif (card and card.faults) or first not in (None, key):
            missing.append(
                f"{name}: it was found faulty, or measured otherwise than the first file"
            )
        else:
            first = key
            if len(added) < 2 and "kv_type" in backend_of(file).knows and file.packs_kv:
                missing.append(f"{name}: types of keys and values but f16")
            yield MeasuredFile(file, weights, added, depth)


def shares(choice: BudgetChoice) -> dict[str, tuple[int, float | None]]:
    """Bytes and nats by what they go to; None for what was not measured by itself."""
    keys, values = kv_pair(choice.kv_type)
    memory, state, alone = choice.memory, choice.of.file.state, {"f16:f16": 0.0, **choice.of.added}
    cache = memory.kv - (state.nbytes if state else 0)
    mine = round(cache * KV_BITS[keys] / (KV_BITS[keys] + KV_BITS[values]))
    return {
        "weights": (memory.weights, choice.of.weights.kl_mean),
        "keys and values": (cache, alone[choice.kv_type]),
        "keys": (mine, alone.get(f"{keys}:f16")),
        "values": (cache - mine, alone.get(f"f16:{values}")),
        "the rest": (memory.total - memory.weights - cache, 0.0),
        "all": (memory.total, choice.kl),
    }


def as_text(choice: BudgetChoice, missing: Sequence[str]) -> str:
    """The choice, where the budget went, how it was measured, and what was not."""
    text, table = choice.of.weights.perplexity, [["", "bytes", "KL"]]
    for name, (size, kl) in shares(choice).items():
        table.append([name, human(size), "not measured" if kl is None else f"{kl:.2g}"])
    lines = [str(choice), "", *(f"  {line}" for line in aligned(table, left=1)), ""]
    lines.append(f"KL of the weights: over {text.tokens:,} tokens (text: {text.text})")
    if choice.kv_type != "f16":
        lines.append(
            f"KL of keys and values: behind {choice.of.depth:,} tokens; the context is"
            f" {choice.context:,}"
        )
    if missing:
        lines += ["Not measured, and so not chosen:", *(f"  {line}" for line in missing)]
    return "\n".join([*lines, "", f"Run it: {_command(choice)}"]) + "\n"


def _command(choice: BudgetChoice) -> str:
    path = shlex.quote(str(choice.of.file.path))
    return f"ingot chat {path} --context {choice.context} --kv-type {choice.kv_type}"


def as_object(choice: BudgetChoice, missing: Sequence[str]) -> dict[str, Any]:
    """All that the text says."""
    return {
        "path": str(choice.of.file.path),
        "kv_type": choice.kv_type,
        "context": choice.context,
        "shares": {name: {"bytes": n, "kl": kl} for name, (n, kl) in shares(choice).items()},
        "weights_over": choice.of.weights.perplexity.tokens,
        "cache_behind": choice.of.depth,
        "not_measured": missing,
        "run": _command(choice),
    }
