"""A LoRA adapter, merged into its base model by peft before anything is built."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quantize.build.process import run_child
from quantize.errors import SourceError, UsageError
from quantize.hub.client import Hub
from quantize.hub.names import parse_hub_name
from quantize.hub.store import Store
from quantize.lora.merge_child import merge
from quantize.options import SourceOptions
from quantize.progress.console import Reporter
from quantize.source.files import EVALUATION, GRADED, TOKENIZERS, read_json, small_files
from quantize.source.model import SourceModel
from quantize.source.open import open_folder
from quantize.source.tensors import Tensor, read_tensors

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TOKENIZER_FILES = frozenset(name for names in TOKENIZERS for name in names)
# peft's names: base_model.model.<module>.lora_A.weight; lora_embedding_A for embeddings.
_ADAPTED = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
_LAYER = re.compile(r"\b(?:layers|h|blocks)\.\d+\.")
_FROM_LAYER = re.compile(r"\b(?:layers|h|blocks)\.\d+\..*")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's folder, its configuration and its tensors."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def base(self) -> str:
        """The model that it says it was trained on."""
        return str(self.config.get("base_model_name_or_path") or "another model")


def open_adapter(lora: str, progress: Reporter, hub: Hub | None = None) -> Adapter:
    """The adapter that ``lora`` names: a folder that peft wrote, or ORG/NAME on the hub.

    Raises UsageError when there is none, SourceError when it is damaged, pickled, or no LoRA, and
    HubError as ``open_source`` does.
    """
    folder = Path(lora)
    if not folder.is_dir():
        name = parse_hub_name(lora)
        if name is None or folder.exists():
            raise UsageError(f"{lora} is not a folder; give a folder that peft wrote, or ORG/NAME")
        hub, store = hub or Hub(), Store(name)
        listing = store.listing(hub, progress)
        wanted = [f for f in listing.files if f.path in {_CONFIG, _WEIGHTS, *_TOKENIZER_FILES}]
        folder = store.bring(hub, listing, wanted, progress)
    config = read_json(folder / _CONFIG, "it is not a LoRA adapter that peft wrote")
    if config.get("peft_type") != "LORA":
        raise SourceError(f"{folder} is a {config.get('peft_type')} adapter; LoRA can be merged")
    if not (folder / _WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        hint = "; its .bin is in pickle form, which can run code" if pickled else ""
        raise SourceError(f"{folder} has no {_WEIGHTS}{hint}")
    return Adapter(folder, config, read_tensors(folder / _WEIGHTS))


def require_match(adapter: Adapter, source: SourceModel) -> None:
    """Raise SourceError when the adapter's matrices do not fit the model's. Headers only: this
    takes milliseconds, loading the model may take minutes. Modules that go by another name in the
    file than in memory are left to the child's check."""
    base: dict[str, Tensor] = {}
    for path in source.weights:
        base.update(read_tensors(path))
    ends = {_end(name): tensor for name, tensor in base.items()}
    layers = {match[0] for name in base if (match := _LAYER.search(name))}
    refusal = f"the adapter {adapter.folder} does not fit {source.name}"
    made_for = f"it was made for {adapter.base}"
    checked = 0
    for name, tensor in adapter.tensors.items():
        match = _ADAPTED.fullmatch(name)
        if match is None:
            continue
        module, side = match[1], match[2]
        target = base.get(f"{module}.weight") or ends.get(_end(f"{module}.weight"))
        layer = _LAYER.search(module)
        if target is None and layer and layer[0] not in layers:
            raise SourceError(f"{refusal}, which has no {module}; {made_for}")
        if target is None or len(target.shape) != 2 or len(tensor.shape) != 2:
            continue
        # A is [rank, in], B is [out, rank]; some models (GPT-2) store weights as [in, out].
        outer = tensor.shape[1] if side == "A" else tensor.shape[0]
        if outer not in target.shape:
            sizes = "x".join(map(str, target.shape))
            raise SourceError(
                f"{refusal}: {module} is {sizes} there, and the adapter's matrix has {outer};"
                f" {made_for}"
            )
        checked += 1
    if not checked:
        raise SourceError(f"{refusal}: it has no matrix for any of its modules; {made_for}")


def merge_lora(
    source: SourceModel,
    lora: str,
    out: Path,
    work: Path,
    progress: Reporter | None = None,
    hub: Hub | None = None,
) -> SourceModel:
    """Write ``source`` with the adapter ``lora`` merged to the folder ``out``; that model.

    The merged weights have the base's types. A tokenizer that came with the adapter takes the place
    of the base's when its embedding was trained too. Everything happens in a child process; ``out``
    appears when it is whole. Raises UsageError, SourceError, HubError, ToolError, OutOfMemoryError
    or DiskFullError.
    """
    progress = progress or Reporter()
    if source.kind != "hf":
        raise UsageError(
            "--lora needs the Hugging Face model as MODEL; a GGUF file takes no adapter"
        )
    adapter = open_adapter(lora, progress, hub)
    require_match(adapter, source)
    made = out.with_name(f".{out.name}.partial")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    with progress.stage(f"merging the adapter {adapter.folder.resolve().name}"):
        run_child(
            partial(merge, source, adapter.folder, made),
            what="merging the adapter",
            work=work,
            torch=True,
        )
    _copy_small(source, adapter, made)
    shutil.rmtree(out, ignore_errors=True)
    made.replace(out)
    options = SourceOptions(str(out), trust_remote_code=source.trust_remote_code)
    merged = open_folder(out, options, progress)
    return replace(
        merged,
        name=source.name,
        revision=source.revision,
        lora=lora if not Path(lora).is_dir() else adapter.folder.resolve().name,
        beside=source.default_out.parent,
    )


def merge_bytes(source: SourceModel) -> int:
    """Bytes that the merged folder takes at most."""
    return int(source.bytes * 1.01) + 64_000_000


def _copy_small(source: SourceModel, adapter: Adapter, out: Path) -> None:
    """Tokenizer, graded questions and evaluation text of the base. config.json is the merged
    model's own: an adapter may have enlarged the vocabulary, and then the tokenizer is its."""
    files = [p for p in small_files(source.folder) if p.name != "config.json"]
    measured_on = [source.folder / GRADED, source.folder / EVALUATION]
    code = source.folder.glob("*.py") if source.trust_remote_code else ()
    for path in (*files, *code, *(path for path in measured_on if path.is_file())):
        shutil.copyfile(path, out / path.name)
    if _has_own_embedding(adapter.tensors) and (adapter.folder / "tokenizer.json").is_file():
        for path in small_files(adapter.folder):
            if path.name != "config.json":
                shutil.copyfile(path, out / path.name)


def _has_own_embedding(tensors: Mapping[str, Tensor]) -> bool:
    return any(
        "lora_" not in name and math.prod(tensor.shape) and "embed" in name
        for name, tensor in tensors.items()
    )


def _end(name: str) -> str:
    """A tensor's name from its layer on, or its last two parts: what stands before differs between
    a file and the loaded model."""
    match = _FROM_LAYER.search(name)
    return match[0] if match else ".".join(name.split(".")[-2:])
