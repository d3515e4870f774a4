"""LoRA adapters: found, compared with the base model, identified, merged into it by peft, or
written as a GGUF file that llama.cpp loads beside a quantized model.
"""

import dataclasses
import logging
import re
import runpy
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quantize.children import run_child
from quantize.disk import full_disk_explained, sha256_text
from quantize.errors import SourceError, UsageError, first_line
from quantize.gguf.converter import LORA_SCRIPT, converter_folder, load_converter
from quantize.hub.client import parse_hub_name
from quantize.hub.transfer import Store
from quantize.manifest import ModelOrigin, digest
from quantize.options import SourceOptions
from quantize.progress import Reporter
from quantize.source.files import (
    EVALUATION,
    GRADED,
    TOKENIZERS,
    Tensor,
    read_json,
    read_tensors,
    small_files,
)
from quantize.source.open import open_folder, open_source
from quantize.source.shapes import SourceModel
from quantize.stages import Stages, stage_key, versions
from runtimes.untrusted import inside

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TOKENIZER_FILES = frozenset(name for names in TOKENIZERS for name in names)
# peft's names: base_model.model.<module>.lora_A.weight; lora_embedding_A for embeddings.
_ADAPTED = re.compile(r"base_model\.model\.(.+?)\.lora_(\w+)(?:\..+)?")
_LAYER = re.compile(r"\b(?:layers|h|blocks)\.\d+\.")
_LOST = "missing adapter keys"  # peft's words when weights of the adapter found no place


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: ``name`` is its repository on the hub, or what its folder is called."""

    name: str
    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def embedding_rows(self) -> int | None:
        """Rows of an embedding that was trained whole; None when the base's is kept."""
        for name, tensor in self.tensors.items():
            whole = "lora_" not in name and ("embed_tokens" in name or "wte" in name)
            if whole and len(tensor.shape) == 2:
                return tensor.shape[0]
        return None


def open_adapter(lora: str, progress: Reporter) -> Adapter:
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
        store = Store(found, progress)
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
    base = {name: t for path in source.weights for name, t in read_tensors(path).items()}
    ends = {_end(name): tensor for name, tensor in base.items()}
    layers = {match[0] for name in base if (match := _LAYER.search(name))}
    refusal = f"the adapter {adapter.folder} does not fit {source.name}"
    made_for = f"it was made for {adapter.config.get('base_model_name_or_path') or 'another model'}"
    checked = 0
    for name, tensor in adapter.tensors.items():
        match = _ADAPTED.fullmatch(name)
        if match is None or match[2] not in ("A", "B"):
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


def _end(name: str) -> str:
    """A tensor's name from its layer on, or its last two parts: what stands before differs between
    a file and the loaded model."""
    match = _LAYER.search(name)
    return name[match.start() :] if match else ".".join(name.split(".")[-2:])


def adapted_fingerprint(base: SourceModel, lora: str | None, progress: Reporter) -> ModelOrigin:
    """Identity of ``base`` with the adapter ``lora``, before anything is merged.

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
    whole = sha256_text(f"{found.hash} {sorted(read.items())}")
    return dataclasses.replace(found, hash=whole, lora=adapter.name)


def merged_source(
    base: SourceModel,
    lora: str,
    fingerprint: ModelOrigin,
    stages: Stages,
    work: Path,
    progress: Reporter,
) -> SourceModel:
    """``base`` with the adapter merged, as a stage: a folder of the model's name."""

    def make(folder: Path) -> None:
        merge_lora(base, open_adapter(lora, progress), folder / base.name, work, progress)

    inputs = {"source": dataclasses.asdict(fingerprint), "tools": versions(["gguf"])}
    stage = stages.run("merge", stage_key("merge", inputs), make)
    if stage.reused:
        progress.note("the adapter was merged by an earlier run")
    return _merged(base, fingerprint.lora, stage.folder / base.name)


def merge_lora(
    base: SourceModel, adapter: Adapter, out: Path, work: Path, progress: Reporter
) -> SourceModel:
    """Write ``base`` with ``adapter`` merged to the new folder ``out``; that model.

    The merged weights have the base's types. A tokenizer that came with the adapter takes the place
    of the base's when its embedding was trained too. Raises SourceError, ToolError,
    OutOfMemoryError or DiskFullError.
    """
    require_match(adapter, base)
    out.mkdir(parents=True)
    with progress.stage(f"merging the adapter {adapter.folder.resolve().name}"):
        run_child(partial(_merge, base, adapter, out), "merging the adapter", work, torch=True)
    # Tokenizer, graded questions and evaluation text of the base. config.json is the merged model's
    # own: an adapter may have enlarged the vocabulary, and then the tokenizer is its.
    files = [*small_files(base.folder), base.folder / GRADED, base.folder / EVALUATION]
    if base.trust_remote_code:
        files += base.folder.glob("*.py")
    if adapter.embedding_rows is not None and (adapter.folder / "tokenizer.json").is_file():
        files += small_files(adapter.folder)
    for path in files:
        if path.name != "config.json" and path.is_file():
            shutil.copyfile(path, out / path.name)
    return _merged(base, adapter.name, out)


def merge_bytes(source: SourceModel) -> int:
    """Bytes that the merged folder takes at most."""
    return int(source.bytes * 1.01) + 64_000_000


def _merged(base: SourceModel, lora: str | None, folder: Path) -> SourceModel:
    options = SourceOptions(str(folder), trust_remote_code=base.trust_remote_code)
    return dataclasses.replace(
        open_folder(folder, options, Reporter()),
        name=base.name,
        revision=base.revision,
        lora=lora,
        beside=base.beside,
    )


def _merge(base: SourceModel, adapter: Adapter, out: Path) -> None:
    """Runs in a child process: the merged model in the folder ``out``, in the types of ``base``."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = base.load(AutoModelForCausalLM, dtype="auto")
    rows = adapter.embedding_rows
    if rows is not None and rows != model.get_input_embeddings().weight.shape[0]:
        logging.info("the adapter has a vocabulary of %d", rows)
        model.resize_token_embeddings(rows, mean_resizing=False)
    modules = {name for name, _ in model.named_modules()}
    for name in adapter.tensors:  # peft would leave those of other modules out silently
        if (match := _ADAPTED.fullmatch(name)) and match[1] not in modules:
            raise SourceError(f"the adapter does not fit this model, which has no {match[1]}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            combined = PeftModel.from_pretrained(model, adapter.folder)
        except (ValueError, RuntimeError, KeyError) as error:
            raise SourceError(
                f"the adapter does not fit this model: {first_line(error)}"
            ) from error
    lost = [str(item.message) for item in said if _LOST in str(item.message)]
    if lost:
        raise SourceError(f"the adapter does not fit this model: {lost[0][:300]}")
    # Weights that would become NaN are refused.
    combined.merge_and_unload(safe_merge=True).save_pretrained(out)


def write_adapter(source: SourceOptions, lora: str, out: Path | None, progress: Reporter) -> Path:
    """Write the adapter ``lora`` of the model ``source`` to the folder ``out``, or beside the
    adapter's own; the file. Raises UsageError or SourceError for one that no GGUF file can hold.
    """
    base, adapter = open_source(source), open_adapter(lora, progress)
    if base.kind == "gguf":
        raise UsageError("an adapter is converted by its Hugging Face model, not by a GGUF file")
    require_match(adapter, base)
    require_plain(adapter)
    name = f"{adapter.name.rpartition('/')[2]}.gguf"
    folder = out if out is not None else Path.cwd() if "/" in adapter.name else None
    folder = folder or adapter.folder.resolve().parent
    with full_disk_explained(folder, "choose another --out"):
        folder.mkdir(parents=True, exist_ok=True)
        target = inside(folder, name, f"the output folder {folder}", UsageError)
        with tempfile.TemporaryDirectory(prefix=".adapter-", dir=folder) as scratch:
            # Under a name of ours: the converter takes braces in a name for its own.
            work, made = Path(scratch), Path(scratch) / "adapter.gguf"
            call = partial(_convert, converter_folder(), base.folder, adapter.folder, made)
            with progress.stage(f"converting the adapter {adapter.name}"):
                run_child(call, "converting the adapter", work, progress, torch=True)
            return made.replace(target)


def require_plain(adapter: Adapter) -> None:
    """Raise SourceError where the adapter is more than matrices A and B with one alpha: llama.cpp
    would leave the rest out."""
    config = adapter.config
    kinds = {
        "DoRA": config.get("use_dora"),
        "rank-stabilized (rsLoRA)": config.get("use_rslora"),
        "one with trained biases": config.get("bias", "none") != "none" or config.get("lora_bias"),
        "one with modules trained whole": config.get("modules_to_save"),
        "one with an alpha for each module": config.get("alpha_pattern"),
        "one with trained tokens": config.get("trainable_token_indices"),
        "an activated one (aLoRA)": config.get("alora_invocation_tokens"),
    }
    found = [kind for kind, used in kinds.items() if used]
    others = [name for name in adapter.tensors if not name.endswith(_MATRICES)]
    if not found and others:
        found = [f"one with {others[0]}"]
    if found:
        raise SourceError(
            f"{adapter.folder} is {found[0]}, which a GGUF adapter cannot hold; merge it into the"
            " model instead: --lora"
        )
    for name in ("r", "lora_alpha"):
        if not isinstance(config.get(name), int | float) or config[name] <= 0:
            raise SourceError(f"{adapter.folder}: adapter_config.json has no usable {name}")


_MATRICES = (".lora_A.weight", ".lora_B.weight")


def _convert(converter: Path, base: Path, adapter: Path, out: Path) -> None:
    """Runs in a child process."""
    load_converter(converter)
    script = str(converter / LORA_SCRIPT)
    sys.argv = [script, str(adapter), "--base", str(base), "--outfile", str(out)]
    sys.argv += ["--outtype", "f16"]
    runpy.run_path(script, run_name="__main__")
