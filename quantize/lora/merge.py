"""A LoRA adapter, merged into its base model by peft before anything is built."""

import dataclasses
import logging
import re
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from quantize.children.process import run_child
from quantize.errors import SourceError
from quantize.lora.adapter import Adapter, open_adapter, require_match
from quantize.manifest import Source
from quantize.options import SourceOptions
from quantize.progress.console import Reporter
from quantize.source.files import EVALUATION, GRADED, small_files
from quantize.source.model import SourceModel
from quantize.source.open import open_folder
from quantize.stages.stages import Stages, stage_key, versions

_LOST = "missing adapter keys"  # peft's words when weights of the adapter found no place


def merged_source(
    base: SourceModel,
    lora: str,
    fingerprint: Source,
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
    _copy_small(base, adapter, out)
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
        beside=base.default_out.parent,
    )


def _copy_small(base: SourceModel, adapter: Adapter, out: Path) -> None:
    """Tokenizer, graded questions and evaluation text of the base. config.json is the merged
    model's own: an adapter may have enlarged the vocabulary, and then the tokenizer is its."""
    files = [*small_files(base.folder)]
    files += [path for name in (GRADED, EVALUATION) if (path := base.folder / name).is_file()]
    if base.trust_remote_code:
        files += base.folder.glob("*.py")
    own = any("lora_" not in name and "embed" in name for name in adapter.tensors)
    if own and (adapter.folder / "tokenizer.json").is_file():
        files += small_files(adapter.folder)
    for path in files:
        if path.name != "config.json":
            shutil.copyfile(path, out / path.name)


def _merge(base: SourceModel, adapter: Adapter, out: Path) -> None:
    """Runs in a child process: the merged model in the folder ``out``, in the types of ``base``.

    Raises SourceError when peft cannot place every weight of the adapter. ``safe_merge`` makes peft
    refuse weights that would become NaN.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        base.folder, dtype="auto", trust_remote_code=base.trust_remote_code
    )
    rows = adapter.embedding_rows
    if rows is not None and rows != model.get_input_embeddings().weight.shape[0]:
        logging.info("the adapter has a vocabulary of %d", rows)
        model.resize_token_embeddings(rows, mean_resizing=False)
    _require_modules(model, adapter)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            combined = PeftModel.from_pretrained(model, adapter.folder)
        except (ValueError, RuntimeError, KeyError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SourceError(f"the adapter does not fit this model: {first}") from error
    lost = [str(item.message) for item in said if _LOST in str(item.message)]
    if lost:
        raise SourceError(f"the adapter does not fit this model: {lost[0][:300]}")
    merged = combined.merge_and_unload(safe_merge=True)
    merged.save_pretrained(out)


def _require_modules(model: Any, adapter: Adapter) -> None:
    """Refuse weights for modules that the model lacks: peft would leave them out silently."""
    modules = {name for name, _ in model.named_modules()}
    for name in adapter.tensors:
        match = re.fullmatch(r"base_model\.model\.(.+?)\.lora_\w+(?:\..+)?", name)
        if match and match[1] not in modules:
            raise SourceError(f"the adapter does not fit this model, which has no {match[1]}")
