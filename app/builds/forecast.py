"""What a run will need, before it is started: sizes, disk, memory, and why it would be refused.

Nothing is loaded: the headers of the weight files tell the sizes, as llama.cpp's quantizer would
write them. Of a model on the hub, which is not downloaded for this, the list of files does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.builds.settings import Settings
from app.here import here
from quantize.build.preflight import (
    known_sizes,
    memory_parts,
    require_fitting,
    require_measuring,
    require_memory,
    require_space,
    space_parts,
    unlisted,
)
from quantize.build.workspace import WORK
from quantize.disk import free_space, human
from quantize.gguf.imatrixfile import is_matrix
from quantize.hub.client import Hub, parse_hub_name
from quantize.hub.transfer import Store
from quantize.recipes import require_matrix
from quantize.source import SourceModel, open_source
from quantize.source.files import wanted
from quantize.stages import stages_size
from runtimes.errors import IngotError, ModelError
from runtimes.machine.hardware import memory_now
from runtimes.machine.locks import holder_of
from runtimes.paths import cache_dir

_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True)
class BuildForecast:
    """What the model is, what the run needs against what there is, and where it goes; in bytes."""

    source: SourceModel
    out: Path
    disk: Mapping[str, int]  # written at most, by what it is for
    disk_free: int  # on the disk of ``out``
    memory: Mapping[str, int]  # by what it is for; the largest part is needed at one time
    memory_free: int
    there: tuple[str, ...] = ()  # recipes whose files an earlier run has made; not in ``disk``
    download: int = 0  # fetched first, to the cache's disk
    download_free: int = 0
    builder: int | None = None  # the process that writes into ``out`` now
    # Why the run would be refused: the field of `Settings` that could change it, "" for none.
    wrong: tuple[tuple[str, str], ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the run would be refused."""
        return tuple(text for _, text in self.wrong)

    @property
    def disk_needed(self) -> int:
        """All parts together."""
        return sum(self.disk.values())

    @property
    def memory_needed(self) -> int:
        """The largest part."""
        return max(self.memory.values(), default=0)

    def lines(self) -> list[str]:
        """About the model and the folder, for people."""
        model, count = self.source, self.source.parameters
        weights = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
        lines = [f"{model.name}: {model.architecture}, {weights} weights, {human(model.bytes)}"]
        if self.download:
            free = human(self.download_free)
            lines.append(f"Download {human(self.download)} first; its disk has {free} free")
        there = f"; there already: {', '.join(self.there)}" if self.there else ""
        lines.append(f"Into {self.out}{there}")
        return lines


def foresee(settings: Settings, hub: Hub | None = None) -> BuildForecast:
    """Look at the model and the machine: some milliseconds, for a model that was not looked at
    before as long as llama.cpp needs to start, for a hub model as long as it answers.

    Raises an IngotError for what is missing or not a model; what would be refused although the
    model is fine is among the ``problems``.
    """
    options = settings.options()
    if settings.from_hub:
        source, download = _remote(settings, hub or Hub())
    else:
        source, download = open_source(options.source), 0
    out = options.out or source.default_out
    recipes = unlisted(out, options)
    disk = space_parts(source, recipes, options, known_sizes(source)) if recipes else {}
    memory = memory_parts(source, recipes, options) if recipes else {}
    reusable = stages_size(out / WORK)
    builder = holder_of(out)
    wrong: list[tuple[str, str]] = []
    if builder is not None:
        # Nothing else is certain while that run fills the disk and frees it again.
        said = f"process {builder} builds into {out} now: wait for it, or choose another folder"
        wrong = [("out", said)]
    gguf = source.kind == "gguf"
    unfit = "lora" if gguf and options.source.lora is not None else "recipes" if gguf else "out"
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("targets", lambda: require_measuring(options)),
        ("imatrix", lambda: require_matrix(options.recipes, options.imatrix)),
        ("imatrix", lambda: options.imatrix is not None and is_matrix(options.imatrix)),
        (unfit, lambda: require_fitting(options, source, out)),
        ("out", lambda: require_space(out, disk, reusable=reusable)),
        ("", lambda: require_memory(memory)),
    )
    for field, check in checks if builder is None else ():
        try:
            check()
        except IngotError as error:
            wrong.append((field, str(error)))
    return BuildForecast(
        source,
        out,
        disk,
        disk_free=free_space(out)[1] + reusable,
        memory=memory,
        memory_free=memory_now()[1],
        there=tuple(r.name for r in options.recipes if r not in recipes),
        download=download,
        download_free=free_space(cache_dir())[1],
        builder=builder,
        wrong=tuple(wrong),
    )


def _remote(settings: Settings, hub: Hub) -> tuple[SourceModel, int]:
    """A model on the hub by its list of files, and the bytes that are still to be downloaded. Its
    weights are taken to have 16 bits, as nearly all have."""
    name = parse_hub_name(settings.source)
    assert name is not None
    store = Store(name, hub=hub)
    listing = store.listing()
    names = wanted((file.path for file in listing.files), pickle=False, code=False)
    files = [file for file in listing.files if file.path in names]
    weights = sum(file.bytes for file in files if file.path.endswith(_WEIGHTS))
    if not weights:
        raise ModelError(f"{name} has no weights in safetensors; it cannot be built from")
    missing = sum(file.bytes for file in store.missing(listing, files))
    source = SourceModel(
        store.folder(listing.commit),
        "on the hub",
        (),
        weights // 2,
        name=name.model,
        bytes=weights,
        beside=here(),
    )
    return source, missing
