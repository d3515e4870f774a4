"""One budget of memory and divergence: the file of a model, the types of its keys and values, and
the context that keep both. Divergences are those that `quantize` and `ingot measure` have measured;
what nobody has measured is named, and never chosen.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.figures import aligned
from app.models.catalog import ModelEntry, entry_of
from app.models.planning import note_context, plan_files
from app.options import ModelOptions, PlanOptions
from quantize.cards import Card, known_cards
from quantize.disk import human
from quantize.errors import MissedTargetError
from quantize.manifest import Fidelity
from quantize.recipes import target_of
from runtimes.backend import MemoryEstimate
from runtimes.errors import OutOfMemoryError, RequestError
from runtimes.models.memory import DEFAULT_CONTEXT, estimate, largest_context
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of
from runtimes.settings import KV_BITS, KvType, RunnerSettings, kv_pair

_SHORTEST = 64  # tokens of a context that is worth choosing
_STATE_BYTES = 4  # of a number of a recurrent layer's state


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """A file with types of keys and values and a context: the memory of all of it, the divergence
    of its weights, and what types add to it, as it was measured behind ``depth`` tokens."""

    file: ModelFile
    settings: RunnerSettings
    memory: MemoryEstimate
    weights: Fidelity
    added: Mapping[KvType, float]
    depth: int

    @property
    def kl(self) -> float:
        """Divergence of weights, keys and values."""
        return self.weights.kl_mean + self.added[self.settings.kv_type]

    def __str__(self) -> str:
        kept = f"keys and values {self.settings.kv_type}"
        if "kv_type" not in backend_of(self.file).knows:
            kept = "keys and values as the graph has them"
        return f"{self.file.path.name}, {kept}, {self.settings.context:,} tokens"


def choose_within(
    model: str, options: ModelOptions, settings: PlanOptions, fits: str | None, max_kl: str | None
) -> tuple[BudgetChoice, list[str]]:
    """Of what keeps the bounds and has the longest context, the choice that loses least, without
    ``fits`` the smallest one; and in words what was not measured. Raises OutOfMemoryError or
    MissedTargetError, which say what is nearest, or RequestError."""
    memory = target_of("memory", fits).value if fits else math.inf
    most = target_of("kl", max_kl).value if max_kl else math.inf
    files = plan_files(model, options, settings.bits or "any")
    cards = known_cards([file.path for file in files.models])
    missing = [f"{name}: {why}" for name, why in files.unreadable]
    found: list[BudgetChoice] = []
    first = ""  # the measurement whose divergences are compared
    for file in files.models:
        name, card, entry = file.path.name, cards.get(file.path), entry_of(file.path)
        weights, key = entry.fidelity, entry.measurement
        if weights is None and card is not None:
            weights, key = card.entry.fidelity, card.key
        if weights is None or (found and key != first) or (card is not None and card.faults):
            apart = "found faulty, or on another text than the first file"
            missing.append(f"{name}: {'how far it is off' if weights is None else apart}")
            continue
        first, (added, depth) = key, _added(entry, card)
        if len(added) < 2 and "kv_type" in backend_of(file).knows and file.packs_kv:
            missing.append(f"{name}: types of keys and values but f16")
        for kind in added:
            if settings.kv_type and kv_pair(kind) != kv_pair(settings.kv_type):
                continue
            asked, context = RunnerSettings(slots=1, kv_type=kind), options.context
            if context is None and fits and max_kl:
                context = max(largest_context(file, asked, int(memory)), _SHORTEST)
            asked = replace(asked, context=min(context or DEFAULT_CONTEXT, file.context_length))
            found.append(BudgetChoice(file, asked, estimate(file, asked), weights, added, depth))
    choice = _best(found, memory, most, "".join(f"\n  {line}" for line in missing))
    note_context(options, choice.file)
    return choice, missing


def _added(entry: ModelEntry, card: Card | None) -> tuple[Mapping[KvType, float], int]:
    """Divergence that each measured type adds, and the tokens behind which."""
    made = entry.allocation
    if card is not None and (full := card.caches.get("f16")):
        kinds = card.caches.items()
        return {
            kind: max(one.kl_mean - full.kl_mean, 0.0) for kind, one in kinds
        }, card.cache_tokens
    if made is None or made.cache_loss is None:
        return {"f16": 0.0}, 0
    return {"f16": 0.0, made.cache: made.cache_loss}, made.cache_tokens


def _best(found: Sequence[BudgetChoice], memory: float, most: float, missing: str) -> BudgetChoice:
    unknown = f"\nNot measured:{missing}" if missing else ""
    if not found:
        does = "`ingot measure FILE --against ORIGINAL` does it"
        raise RequestError(f"nothing to choose is measured: {does}{unknown}")

    def cost(one: BudgetChoice) -> tuple[float, ...]:
        loss = 0 if math.isinf(memory) else one.kl
        return -(one.settings.context or 0), loss, one.memory.total

    near = [one for one in found if one.kl <= most]
    if kept := [one for one in near if one.memory.total <= memory]:
        return min(kept, key=cost)
    best = min(near or found, key=lambda one: one.memory.total if near else one.kl)
    raise (OutOfMemoryError if near else MissedTargetError)(
        f"nothing keeps the bounds; {best} takes {human(best.memory.total)} of memory and has a KL"
        f" divergence of {best.kl:.3g}. Give more memory, a larger --max-kl or a shorter --context,"
        f" or make a file: `quantize ORIGINAL --fits`{unknown}"
    )


def shares(choice: BudgetChoice) -> dict[str, tuple[int, float | None]]:
    """Bytes and nats by what they go to; None for what was not measured by itself."""
    keys, values = kv_pair(choice.settings.kv_type)
    memory, state, alone = choice.memory, choice.file.state, {"f16:f16": 0.0, **choice.added}
    cache = memory.kv - (_STATE_BYTES * state.layers * state.floats if state else 0)
    mine = round(cache * KV_BITS[keys] / (KV_BITS[keys] + KV_BITS[values]))
    return {
        "weights": (memory.weights, choice.weights.kl_mean),
        "keys and values": (cache, choice.added[choice.settings.kv_type]),
        "keys": (mine, alone.get(f"{keys}:f16")),
        "values": (cache - mine, alone.get(f"f16:{values}")),
        "the rest": (memory.total - memory.weights - cache, 0.0),
        "all": (memory.total, choice.kl),
    }


def as_text(choice: BudgetChoice, missing: Sequence[str]) -> str:
    """The choice, where the budget went, how it was measured, and what was not."""
    text, settings = choice.weights.perplexity, choice.settings
    table = [["", "bytes", "KL"]]
    for name, (size, kl) in shares(choice).items():
        table.append([name, human(size), "not measured" if kl is None else f"{kl:.2g}"])
    lines = [str(choice), "", *(f"  {line}" for line in aligned(table, left=1)), ""]
    lines.append(f"KL of the weights: over {text.tokens:,} tokens of the {text.text}")
    if settings.kv_type != "f16":
        at = f"behind {choice.depth:,} tokens; the context is {settings.context:,}"
        lines.append(f"KL of keys and values: {at}")
    if missing:
        lines += ["Not measured, and so not chosen:", *(f"  {line}" for line in missing)]
    return "\n".join([*lines, "", f"Run it: {_command(choice)}"]) + "\n"


def _command(choice: BudgetChoice) -> str:
    path, settings = shlex.quote(str(choice.file.path)), choice.settings
    return f"ingot chat {path} --context {settings.context} --kv-type {settings.kv_type}"


def as_object(choice: BudgetChoice, missing: Sequence[str]) -> dict[str, Any]:
    """All that the text says."""
    return {
        "path": str(choice.file.path),
        "kv_type": choice.settings.kv_type,
        "context": choice.settings.context,
        "shares": {name: {"bytes": n, "kl": kl} for name, (n, kl) in shares(choice).items()},
        "weights_over": choice.weights.perplexity.tokens,
        "cache_behind": choice.depth,
        "not_measured": missing,
        "run": _command(choice),
    }
