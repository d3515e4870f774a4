"""A LoRA adapter: found, compared with its base model, and identified."""

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.errors import SourceError, UsageError
from quantize.hub.client import Hub
from quantize.hub.names import parse_hub_name
from quantize.hub.store import Store
from quantize.manifest import Source
from quantize.progress.console import Reporter
from quantize.source.files import TOKENIZERS, Tensor, read_json, read_tensors, small_files
from quantize.source.model import SourceModel
from quantize.stages.verify import digest

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TOKENIZER_FILES = frozenset(name for names in TOKENIZERS for name in names)
# peft's names: base_model.model.<module>.lora_A.weight; lora_embedding_A for embeddings.
_ADAPTED = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
_LAYER = re.compile(r"\b(?:layers|h|blocks)\.\d+\.")
_FROM_LAYER = re.compile(r"\b(?:layers|h|blocks)\.\d+\..*")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: ``name`` is its repository on the hub, or what its folder is called."""

    name: str
    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def base(self) -> str:
        """The model that it says it was trained on."""
        return str(self.config.get("base_model_name_or_path") or "another model")

    @property
    def embedding_rows(self) -> int | None:
        """Rows of an embedding that was trained whole; None when the base's is kept."""
        for name, tensor in self.tensors.items():
            whole = "lora_" not in name and ("embed_tokens" in name or "wte" in name)
            if whole and len(tensor.shape) == 2:
                return tensor.shape[0]
        return None


def open_adapter(lora: str, progress: Reporter, hub: Hub | None = None) -> Adapter:
    """The adapter that ``lora`` names: a folder that peft wrote, or ORG/NAME on the hub.

    Raises UsageError when there is none, SourceError when it is damaged, pickled, or no LoRA, and
    HubError as ``open_source`` does.
    """
    folder, name = Path(lora), lora
    if folder.is_dir():
        name = folder.resolve().name
    else:
        found = parse_hub_name(lora)
        if found is None or folder.exists():
            raise UsageError(f"{lora} is not a folder; give a folder that peft wrote, or ORG/NAME")
        store = Store(found, progress, hub or Hub())
        listing = store.listing()
        wanted = [f for f in listing.files if f.path in {_CONFIG, _WEIGHTS, *_TOKENIZER_FILES}]
        folder = store.bring(listing, wanted)
    config = read_json(folder / _CONFIG, "it is not a LoRA adapter that peft wrote")
    if config.get("peft_type") != "LORA":
        raise SourceError(f"{folder} is a {config.get('peft_type')} adapter; LoRA can be merged")
    if not (folder / _WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        hint = "; its .bin is in pickle form, which can run code" if pickled else ""
        raise SourceError(f"{folder} has no {_WEIGHTS}{hint}")
    return Adapter(name, folder, config, read_tensors(folder / _WEIGHTS))


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


def adapted_fingerprint(base: SourceModel, lora: str | None, progress: Reporter) -> Source:
    """What ``base`` with the adapter ``lora`` is identified by, before anything is merged.

    Raises as ``open_adapter`` does, and SourceError when the adapter does not fit.
    """
    found = base.fingerprint()
    if lora is None:
        return found
    adapter = open_adapter(lora, progress)
    require_match(adapter, base)
    # Checkpoints of its training decide nothing.
    files = [adapter.folder / _CONFIG, adapter.folder / _WEIGHTS, *small_files(adapter.folder)]
    read = {path.name: digest(path).sha256 for path in files}
    whole = hashlib.sha256(f"{found.hash} {sorted(read.items())}".encode())
    return dataclasses.replace(found, hash=whole.hexdigest(), lora=adapter.name)


def _end(name: str) -> str:
    """A tensor's name from its layer on, or its last two parts: what stands before differs between
    a file and the loaded model."""
    match = _FROM_LAYER.search(name)
    return match[0] if match else ".".join(name.split(".")[-2:])
