"""What each recipe would make of a model: bytes, bits a weight, memory and quality, before anything
is built. What an earlier run has measured counts more than what is predicted.

The recipes alone are known at once; what looks into models, and needs numpy, is imported there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.builds.settings import estimated_size, offered
from app.models.entries import kl_text
from quantize.disk import human
from quantize.manifest import FileEntry, load_manifest
from quantize.recipes import Recipe
from runtimes.errors import ModelError
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import DEFAULT_CONTEXT, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings

if TYPE_CHECKING:
    from quantize.source import SourceModel

_LLAMACPP = "llamacpp"  # in `runtimes`
RUNTIMES = {"gguf": "llama.cpp", "onnx": "ONNX Runtime"}
_WIDER = 2  # keys and values have 32 bits in ONNX Runtime and 16 in llama.cpp
_PACKED = 1.1  # of an ONNX folder's bytes: a session packs its weights with sums beside them, about


@dataclass(frozen=True, slots=True)
class Prospect:
    """A recipe's file. ``exact``: its shapes are known, or it is there; else its size goes by the
    recipe's nominal bits. ``measured`` is the file that lies in the folder, if it was measured."""

    recipe: Recipe
    bytes: int | None = None
    bits: float | None = None
    exact: bool = False
    memory: int | None = None  # with one conversation of the default context
    there: bool = False
    measured: FileEntry | None = None

    @property
    def size_text(self) -> str:
        """Such as "93 MB", with "about" where only the nominal bits are known."""
        if self.bytes is None:
            return ""
        return human(self.bytes) if self.exact else f"~{human(self.bytes)}"

    @property
    def bits_text(self) -> str:
        """Such as "6.3 bits": of this model's file where that is known."""
        if self.exact and self.bits is not None:
            return f"{self.bits:.1f} bits"
        return f"~{self.recipe.bits_per_weight:.1f} bits"

    @property
    def kl(self) -> float | None:
        """How far from the original: as measured, or as published of the type."""
        if self.measured is not None and self.measured.fidelity is not None:
            return self.measured.fidelity.kl_mean
        return self.recipe.published_kl

    @property
    def quality_text(self) -> str:
        """What is known of the distance to the original, with its source."""
        if self.measured is not None and self.measured.fidelity is not None:
            found = self.measured.fidelity
            return f"{kl_text(found.kl_mean)}, {found.same_top:.1%} same top"
        if self.recipe.is_float:
            return "not quantized"
        if self.recipe.published_kl is not None:
            return f"{kl_text(self.recipe.published_kl)} on Llama-3-8B"
        return "not measured yet"


@dataclass(frozen=True, slots=True)
class Prospects:
    """Of all recipes, by name."""

    recipes: Mapping[str, Prospect] = field(default_factory=dict)
    memory_free: int = 0

    def fits(self, name: str) -> bool | None:
        """Whether its file fits into this machine's free memory; None where that is not known."""
        needs = self.recipes[name].memory
        return None if needs is None else needs <= self.memory_free

    def total(self, names: Sequence[str]) -> int:
        """Bytes of those files together."""
        return sum(self.recipes[name].bytes or 0 for name in names)


def bare_prospects() -> Prospects:
    """What the recipes say of themselves, without a model."""
    return Prospects({recipe.name: Prospect(recipe) for recipe in offered()})


def prospects(source: SourceModel, out: Path) -> Prospects:
    """For ``source``, with the files that lie in ``out``. The first call for a model takes as long
    as llama.cpp needs to start, some tenths of a second; nothing is loaded."""
    from quantize.build.preflight import known_sizes

    free = memory_now()[1]
    try:
        there = {entry.recipe: entry for entry in load_manifest(out).files}
    except ModelError:
        there = {}
    sizes = known_sizes(source)
    like = _like(source) if sizes else None  # neither of a model that llama.cpp does not know
    found = {}
    for recipe in offered():
        size, entry = sizes.get(recipe.name), there.get(recipe.name)
        about = estimated_size(source.parameters, recipe)
        whole = entry.bytes if entry else size.bytes if size else about
        # What an older program has built says nothing of its bits.
        bits = (entry.bits_per_weight if entry else None) or (
            size.bits_per_weight if size else None
        )
        found[recipe.name] = Prospect(
            recipe,
            whole,
            bits,
            exact=size is not None or entry is not None,
            memory=_memory(like, whole, recipe) if like else None,
            there=entry is not None,
            measured=entry if entry and entry.fidelity else None,
        )
    return Prospects(found, free)


def _like(source: SourceModel) -> ModelFile:
    """A file of this model as its memory is counted, apart from its bytes."""
    if source.kind == "gguf":
        return read_model(source.weights[0])
    from quantize.source.shapes import shapes_of

    shapes = shapes_of(source)
    config, embedding = shapes.config, shapes.weights.get("token_embd.weight", (0, 0))
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or embedding[0] // heads)
    return ModelFile(
        source.folder,
        _LLAMACPP,
        source.name,
        source.architecture,
        "",
        source.bytes,
        int(config.get("max_position_embeddings") or DEFAULT_CONTEXT),
        shapes.layers,
        heads,
        kv_heads,
        head_dim,
        embedding[-1],
        None,
        None,
        kv_elements=2 * shapes.layers * kv_heads * head_dim,
        hidden=embedding[0],
        feed_forward=max((s[-1] for n, s in shapes.weights.items() if ".ffn_up." in n), default=0),
    )


def _memory(like: ModelFile, size: int, recipe: Recipe) -> int:
    """What loading a file of ``size`` bytes needs, about."""
    if recipe.format == "onnx":
        size, wider = int(size * _PACKED), like.kv_elements * _WIDER
        like = replace(like, kv_elements=wider)
    return estimate(replace(like, nbytes=size), RunnerSettings(slots=1)).total
