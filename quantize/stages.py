"""Finished pieces of work, kept until the run is done, so that the next run resumes from them, and
the keys that say which pieces are the same.

A stage is a folder ``ROOT/NAME-KEY`` with the files that it made and a record, `stage.json`, which
is written last and in one step. The key is a hash over everything that decides the outcome. Before
a stage is taken over, its files are compared with the checksums in the record: that a file exists
says nothing about what is in it.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quantize.disk import sha256_text, write_atomically
from quantize.errors import UsageError
from quantize.fromjson import GARBLED
from quantize.gguf.imatrixfile import is_matrix
from quantize.manifest import Digest, ModelOrigin, digest, digests
from quantize.options import Options
from quantize.progress import Reporter
from quantize.recipes import Recipe
from quantize.source import SourceModel
from quantize.source.files import CALIBRATION
from runtimes.errors import IngotError
from runtimes.machine import installed
from runtimes.untrusted import inside, is_link, load_json, remove

logger = logging.getLogger(__name__)

JsonObject = dict[str, Any]

RECORD = "stage.json"

# Raised above 1 when the code of a stage changes so that the same inputs give another outcome.
_VERSIONS = {"reference": 2, "fidelity": 2, "speed": 4, "measure": 2}

_TOOLS = {
    "gguf": "torch transformers tokenizers llama-cpp-python".split(),
    "onnx": (
        "torch transformers tokenizers onnx onnx_ir onnxruntime onnxruntime-gpu onnxruntime-genai"
        " onnxruntime-genai-cuda"
    ).split(),
}
# Tokenizers, templates, configurations, and the model card, from which the converter takes names.
_SMALL = ".json .jinja .model .txt .md .py .tiktoken .spm".split()


def stage_version(name: str) -> int:
    """The version of the code that makes the stage."""
    return _VERSIONS.get(name, 1)


def stage_key(name: str, inputs: Mapping[str, Any]) -> str:
    """sha256 over the stage's name, the version of its code and ``inputs`` (JSON values)."""
    whole = {"stage": name, "version": stage_version(name), "inputs": inputs}
    return sha256_text(json.dumps(whole, sort_keys=True, ensure_ascii=False))


def versions(formats: Iterable[str]) -> dict[str, str]:
    """The tools that make files of these formats, as far as they are hardware."""
    return installed.versions(dict.fromkeys(name for fmt in formats for name in _TOOLS[fmt]))


def source_inputs(source: SourceModel, fingerprint: ModelOrigin) -> JsonObject:
    """The weights and configuration by their hash, and every small file that tools may read."""
    small = {}
    for path in sorted(source.folder.iterdir() if source.folder.is_dir() else ()):
        if path.name == CALIBRATION:  # decides the files of targets only, by `build_key`
            continue
        if path.suffix in _SMALL and path.is_file() and path not in source.weights:
            small[path.name] = digest(path).sha256
    return {**asdict(fingerprint), "small_files": sha256_text(repr(small))}


def export_key(source: JsonObject) -> str:
    """The half-precision GGUF file."""
    return stage_key("export", {"source": source, "tools": versions(["gguf"])})


def imatrix_key(source: JsonObject, recipe: Recipe, options: Options) -> str | None:
    """The importance matrix that ``recipe`` takes; None if there is none for it."""
    if options.imatrix is None or not recipe.is_weighed:
        return None
    return matrix_key(source, options.imatrix)


def matrix_key(source: JsonObject, given: Path) -> str:
    """The importance matrix of ``given``."""
    sha256 = digest(given).sha256
    return stage_key("imatrix", {"source": source, "given": sha256, "tools": versions(["gguf"])})


def calibration(recipe: Recipe, options: Options) -> Path | None:
    """The text that ``recipe`` smooths activations by: the one that an importance matrix would be
    computed from, for the recipes that round activations."""
    given = options.imatrix
    return given if given and recipe.rounds_activations and not is_matrix(given) else None


def build_key(
    source: JsonObject, recipe: Recipe, options: Options, texts: Iterable[Path] = ()
) -> str:
    """One file; for a target, and with --gptq, by the ``texts`` that decide it."""
    own = asdict(recipe)
    if recipe.target is None:
        own.pop("target")
    # What changes no byte.
    for name in "advice limits bits_per_weight needs_imatrix published_kl".split():
        own.pop(name)
    inputs: JsonObject = {"recipe": own, "tools": versions([recipe.format])}
    if recipe.format == "gguf":
        inputs["export"] = export_key(source)
        inputs["imatrix"] = imatrix_key(source, recipe, options)
        inputs["overrides"] = list(options.overrides.items())  # the first that matches counts
    else:
        inputs |= {"source": source, "target": options.target}
        if key := imatrix_key(source, recipe, options):
            inputs["imatrix"] = key
        if text := calibration(recipe, options):
            inputs["calibration"] = digest(text).sha256
    if options.gptq and recipe.takes_gptq:
        inputs["gptq"] = True
    if (listed := options.allocations.get(recipe.name)) and listed.allocation:
        inputs["types"] = listed.allocation.types
    if texts and (recipe.target or "gptq" in inputs):
        inputs["texts"] = [digest(path).sha256 for path in texts]
    return stage_key("build", inputs)


@dataclass(frozen=True, slots=True)
class Stage:
    """A finished stage: where its files are, what they hold (by name as seen from ``folder``), and
    the JSON value that its maker returned. ``reused`` if an earlier run had finished it."""

    folder: Path
    files: Mapping[str, Digest]
    value: Any
    reused: bool

    @property
    def sha256(self) -> dict[str, str]:
        """The checksum of each file."""
        return {name: found.sha256 for name, found in self.files.items()}

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(found.bytes for found in self.files.values())


# Whether a stage that an earlier run has left, or that came with a model from elsewhere, is one
# that could have been made here. It may raise what `from_json` raises.
Valid = Callable[[Stage], bool]


@dataclass
class Stages:
    """The stages below ``root``, all of one model: those of another ``owner`` are stale, and with
    ``fresh`` all are."""

    root: Path
    owner: str
    fresh: bool = False
    progress: Reporter = field(default_factory=Reporter)
    _checked: dict[str, Stage] = field(default_factory=dict)
    _failed: dict[str, IngotError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Remove what was not finished and what belongs to another model."""
        for folder in self.root.iterdir():
            inside(self.root, folder.name, str(self.root), UsageError)
            if self.fresh or _read(folder).get("owner") != self.owner:
                logger.debug("removing %s", folder.name)
                self._remove(folder)

    def find(self, name: str, key: str, valid: Valid = lambda _: True) -> Stage | None:
        """The stage if it is finished, whole and ``valid``; one that is damaged is removed, as is
        one with links: our own have none, and others would be read or published through them."""
        if known := self._checked.get(key):
            return known
        folder = self._folder(name, key)
        if not folder.is_dir():
            return None
        record = _read(folder)
        with self.progress.stage(f"reading what an earlier run has made ({name})"):
            found = digests(folder, without=RECORD)
        files = {one: asdict(digest) for one, digest in found.items()}
        stage = Stage(folder, found, record.get("value"), reused=True)
        linked = any(is_link(path) for path in folder.rglob("*"))
        same = record.get("key") == key and record.get("files") == files
        if linked or not same or not _is(valid, stage):
            logger.debug("%s is damaged", folder.name)
            self._remove(folder)
            return None
        self._checked[key] = stage
        return stage

    def run(
        self,
        name: str,
        key: str,
        make: Callable[[Path], Any],
        text: str = "",
        *,
        told: bool = True,
        valid: Valid = lambda _: True,
    ) -> Stage:
        """The finished stage: an earlier run's, which is ``told`` and ``valid``, or made now and
        shown as ``text``. What has failed in this run, and other files need too, fails at once.

        ``make`` is given an empty folder for its files and returns a JSON value.
        """
        if key in self._failed:
            raise self._failed[key]
        if found := self.find(name, key, valid):
            if found.reused and text and told:
                self.progress.note(f"{text}: an earlier run has done this")
            return found
        folder = self._folder(name, key)
        folder.mkdir()
        try:
            with self.progress.stage(text) if text else contextlib.nullcontext():
                value = make(folder)
                if text:
                    self.progress.step("computing checksums")
                files = digests(folder)
                record = {"key": key, "owner": self.owner, "value": value}
                record["files"] = {name: asdict(digest) for name, digest in files.items()}
                write_atomically(folder / RECORD, json.dumps(record, ensure_ascii=False))
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._remove(folder)
            if isinstance(error, IngotError):
                self._failed[key] = error
            raise
        self._checked[key] = Stage(folder, files, value, reused=False)
        return self._checked[key]

    def drop(self, name: str, key: str) -> None:
        """Remove a stage that nothing needs any more."""
        self._checked.pop(key, None)
        with contextlib.suppress(OSError):
            self._remove(self._folder(name, key))

    def _remove(self, folder: Path) -> None:
        remove(self.root, folder.name, str(self.root), UsageError)

    def _folder(self, name: str, key: str) -> Path:
        return self.root / f"{name}-{key[:16]}"


def _is(valid: Valid, stage: Stage) -> bool:
    with contextlib.suppress(*GARBLED):
        return valid(stage)
    return False


def are_texts(value: Any) -> bool:
    """Whether a JSON ``value`` is a list of texts."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def stages_size(root: Path) -> int:
    """Bytes on disk of everything below ``root``; 0 when there is nothing."""
    found = [path.lstat() for path in root.rglob("*") if path.is_file()]
    # Windows does not tell the blocks.
    return sum(int(getattr(one, "st_blocks", one.st_size / 512) * 512) for one in found)


def _read(folder: Path) -> JsonObject:
    """The record of a stage; empty when it is missing or unreadable, that is, unfinished."""
    with contextlib.suppress(OSError, ValueError):
        record = load_json(folder / RECORD)
        return record if isinstance(record, dict) else {}
    return {}
