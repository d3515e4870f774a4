"""Forecasts before a build: each recipe's bytes, bits a weight, memory and quality; what a run
needs, and why `quantize` would refuse it. Figures measured by an earlier run replace predictions.

The recipes alone are known at once; what looks into models, and needs numpy, is imported where it
is used. Nothing is loaded: the headers of the weight files tell the sizes, as llama.cpp's quantizer
would write them. Of a model on the hub, which is not downloaded for this, the list of files does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.builds.run import Settings, estimated_size, offered
from app.here import here
from app.models.catalog import kl_text
from quantize.disk import free_space, human
from quantize.hub.client import parse_hub_name
from quantize.manifest import Fidelity, FileEntry, load_manifest
from quantize.recipes import Recipe, require_matrix
from runtimes.errors import IngotError, ModelError
from runtimes.machine.hardware import memory_now
from runtimes.machine.locks import holder_of
from runtimes.models.memory import DEFAULT_CONTEXT, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.paths import cache_dir
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
    recipe's nominal bits. ``measured``: what was measured of the file that lies in the folder."""

    recipe: Recipe
    bytes: int | None = None
    bits: float | None = None
    exact: bool = False
    memory: int | None = None  # with one conversation of the default context
    there: bool = False
    measured: Fidelity | None = None

    @property
    def size_text(self) -> str:
        """Size, as in "93 MB", or "~93 MB" where only the nominal bits are known."""
        if self.bytes is None:
            return ""
        return human(self.bytes) if self.exact else f"~{human(self.bytes)}"

    @property
    def bits_text(self) -> str:
        """Bits a weight, as in "6.3 bits": of this model's file where that is known."""
        if self.exact and self.bits is not None:
            return f"{self.bits:.1f} bits"
        return f"~{self.recipe.bits_per_weight:.1f} bits"

    @property
    def kl(self) -> float | None:
        """How far from the original: as measured, or as published of the type."""
        return self.measured.kl_mean if self.measured else self.recipe.published_kl

    @property
    def quality_text(self) -> str:
        """Known distance to the original, with its source."""
        if self.measured is not None:
            return f"{kl_text(self.measured.kl_mean)}, {self.measured.same_top:.1%} same top"
        if self.recipe.is_float:
            return "not quantized"
        if self.kl is not None:
            return f"{kl_text(self.kl)} on Llama-3-8B"
        return "not measured yet"


@dataclass(frozen=True, slots=True)
class Prospects:
    """The prospects of all recipes, by name."""

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
    """List the recipes with their nominal figures, without a model."""
    return Prospects({recipe.name: Prospect(recipe) for recipe in offered()})


def prospects(source: SourceModel, out: Path) -> Prospects:
    """For ``source``, with the files that lie in ``out``. The first call for a model takes as long
    as llama.cpp needs to start, some tenths of a second; nothing is loaded."""
    from quantize.build.preflight import known_sizes

    there: dict[str, FileEntry] = {}
    with suppress(ModelError):
        there = {entry.recipe: entry for entry in load_manifest(out).files}
    sizes = known_sizes(source)
    like = _like(source) if sizes else None  # neither of a model that llama.cpp does not know
    found = {}
    for recipe in offered():
        size, entry = sizes.get(recipe.name), there.get(recipe.name)
        # What an older program has built says nothing of its bits.
        known = [one for one in (entry, size) if one]
        whole = known[0].bytes if known else estimated_size(source.parameters, recipe)
        found[recipe.name] = Prospect(
            recipe,
            whole,
            next((one.bits_per_weight for one in known if one.bits_per_weight), None),
            exact=bool(known),
            memory=_memory(like, whole, recipe) if like else None,
            there=entry is not None,
            measured=entry.fidelity if entry else None,
        )
    return Prospects(found, memory_now()[1])


def _like(source: SourceModel) -> ModelFile:
    """A file of this model as its memory is counted, apart from its bytes."""
    if source.kind == "gguf":
        return read_model(source.weights[0])
    from quantize.source.shapes import shapes_of

    shapes = shapes_of(source)
    embedding = shapes.weights.get("token_embd.weight", (0, 0))
    heads = int(shapes.number("num_attention_heads", "n_head", default=1))
    kv_heads = int(shapes.number("num_key_value_heads", default=heads))
    head_dim = int(shapes.number("head_dim", default=embedding[0] // heads))
    return ModelFile(
        source.folder,
        _LLAMACPP,
        source.name,
        source.architecture,
        "",
        source.bytes,
        int(shapes.number("max_position_embeddings", default=DEFAULT_CONTEXT)),
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
    """Estimate the bytes of memory that loading a file of ``size`` bytes needs."""
    file = replace(like, nbytes=size)
    if recipe.format == "onnx":
        wider = like.kv_elements * _WIDER
        file = replace(like, nbytes=int(size * _PACKED), kv_elements=wider)
    return estimate(file, RunnerSettings(slots=1)).total


# What a run will need, before it is started: sizes, disk, memory, and why it would be refused.

_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True)
class BuildForecast:
    """A model, the resources that a run needs and has, and its output folder; in bytes."""

    source: SourceModel
    out: Path
    disk: int  # written at most
    disk_free: int  # on the disk of ``out``
    memory: int  # at one time
    there: tuple[str, ...] = ()  # recipes whose files an earlier run has made; not in ``disk``
    download: int = 0  # fetched first, to the cache's disk
    builder: int | None = None  # the process that writes into ``out`` now
    # Why the run would be refused: the field of `Settings` that could change it, "" for none.
    wrong: tuple[tuple[str, str], ...] = ()

    def lines(self) -> list[str]:
        """Describe the model and the folder for people."""
        model, count = self.source, self.source.parameters
        weights = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
        lines = [f"{model.name}: {model.architecture}, {weights} weights, {human(model.bytes)}"]
        if self.download:
            free = human(free_space(cache_dir())[1])
            lines.append(f"Download {human(self.download)} first; its disk has {free} free")
        there = f"; there already: {', '.join(self.there)}" if self.there else ""
        lines.append(f"Into {self.out}{there}")
        return lines


def foresee(settings: Settings) -> BuildForecast:
    """Look at the model and the machine: some milliseconds, for a model that was not looked at
    before as long as llama.cpp needs to start, for a hub model as long as it answers.

    Raises an IngotError for what is missing or not a model; what would be refused although the
    model is fine is in ``wrong``.
    """
    from quantize.build import preflight
    from quantize.build.workspace import WORK
    from quantize.gguf.imatrixfile import is_matrix
    from quantize.source import open_source
    from quantize.stages import stages_size

    options, download = settings.options(), 0
    if settings.from_hub:
        source, download = _remote(settings)
    else:
        source = open_source(options.source)
    out = options.out or source.default_out
    recipes = preflight.unlisted(out, options)
    disk, memory = dict[str, int](), dict[str, int]()
    if recipes:
        disk = preflight.space_parts(source, recipes, options, preflight.known_sizes(source))
        memory = preflight.memory_parts(source, recipes, options)
    reusable = stages_size(out / WORK)
    gguf = source.kind == "gguf"
    unfit = "lora" if gguf and options.source.lora is not None else "recipes" if gguf else "out"
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("targets", lambda: preflight.require_measuring(options)),
        ("imatrix", lambda: require_matrix(options.recipes, options.imatrix)),
        ("imatrix", lambda: options.imatrix is not None and is_matrix(options.imatrix)),
        (unfit, lambda: preflight.require_fitting(options, source, out)),
        ("out", lambda: preflight.require_space(out, disk, reusable=reusable)),
        ("", lambda: preflight.require_memory(memory)),
    )
    builder, wrong = holder_of(out), list[tuple[str, str]]()
    if builder is not None:
        # Nothing else is certain while that run fills the disk and frees it again.
        said = f"process {builder} builds into {out} now: wait for it, or choose another folder"
        wrong, checks = [("out", said)], ()
    for name, check in checks:
        try:
            check()
        except IngotError as error:
            wrong.append((name, str(error)))
    return BuildForecast(
        source,
        out,
        sum(disk.values()),
        free_space(out)[1] + reusable,
        max(memory.values(), default=0),
        tuple(r.name for r in options.recipes if r not in recipes),
        download,
        builder,
        tuple(wrong),
    )


def _remote(settings: Settings) -> tuple[SourceModel, int]:
    """A model on the hub by its list of files, and the bytes that are still to be downloaded. Its
    weights are taken to have 16 bits, as nearly all have."""
    from quantize.hub.client import Hub
    from quantize.hub.transfer import Store
    from quantize.source import SourceModel
    from quantize.source.files import wanted

    name = parse_hub_name(settings.source)
    assert name is not None
    store = Store(name, hub=Hub())
    listing = store.listing()
    names = wanted((file.path for file in listing.files), pickle=False, code=False)
    files = [file for file in listing.files if file.path in names]
    weights = sum(file.bytes for file in files if file.path.endswith(_WEIGHTS))
    if not weights:
        raise ModelError(f"{name} has no weights in safetensors; it cannot be built from")
    source = SourceModel(
        store.folder(listing.commit),
        "on the hub",
        (),
        weights // 2,
        name=name.model,
        bytes=weights,
        beside=here(),
    )
    return source, sum(file.bytes for file in store.missing(listing, files))
