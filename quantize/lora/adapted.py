"""A LoRA adapter in a run: it is merged only when something has to be built or measured."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from quantize.build.stages import Stages, stage_key
from quantize.build.verify import digest
from quantize.lora.merge import merge_lora, open_adapter, require_match
from quantize.manifest import Source
from quantize.progress.console import Reporter
from quantize.recipes.keys import versions
from quantize.source import SourceModel
from quantize.source.files import small_files


def adapted_fingerprint(base: SourceModel, lora: str | None, progress: Reporter) -> Source:
    """What ``base`` with the adapter ``lora`` is identified by, before anything is merged.

    Raises as ``open_adapter`` does, and SourceError when the adapter does not fit.
    """
    found = base.fingerprint()
    if lora is None:
        return found
    adapter = open_adapter(lora, progress)
    require_match(adapter, base)
    read = {path.name: digest(path).sha256 for path in _read_files(adapter.folder)}
    whole = hashlib.sha256(f"{found.hash} {sorted(read.items())}".encode())
    name = adapter.folder.resolve().name if Path(lora).is_dir() else lora
    return dataclasses.replace(found, hash=whole.hexdigest(), lora=name)


def merged_source(
    base: SourceModel,
    lora: str,
    fingerprint: Source,
    stages: Stages,
    work: Path,
    progress: Reporter,
) -> SourceModel:
    """``base`` with the adapter merged, as a stage: a folder of the model's name."""
    inputs = {"source": dataclasses.asdict(fingerprint), "tools": versions(["gguf"])}

    def make(folder: Path) -> dict[str, Any]:
        made = merge_lora(base, lora, folder / base.name, work, progress)
        return {
            "weights": [path.name for path in made.weights],
            "parameters": made.parameters,
            "bytes": made.bytes,
            "architecture": made.architecture,
        }

    stage = stages.run("merge", stage_key("merge", inputs), make)
    if stage.reused:
        progress.note("the adapter was merged by an earlier run")
    folder, value = stage.folder / base.name, dict(stage.value)
    weights = tuple(folder / name for name in value.pop("weights"))
    return dataclasses.replace(base, folder=folder, weights=weights, **value, lora=fingerprint.lora)


def _read_files(folder: Path) -> list[Path]:
    """What of an adapter's folder decides the merged model; checkpoints of its training do not."""
    own = [folder / "adapter_config.json", folder / "adapter_model.safetensors"]
    return [*own, *small_files(folder)]
