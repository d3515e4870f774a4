"""Labels of a loaded model: its name, measured quality and device."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runtimes.errors import IngotError

if TYPE_CHECKING:  # what loads a model is imported when one is loaded: the app is drawn before
    from app.models.planning import LoadChoice
    from runtimes.engine.metrics import EngineStats
    from runtimes.models.modelfile import ModelFile

log = logging.getLogger(__name__)

# The end of a GGUF file's name that says what its tensors are: Qwen2.5-0.5B-Instruct-Q4_K_M.
_TYPE = re.compile(
    r"[-._]((?:UD-)?(?:I?Q\d\w*|TQ\d_0|MXFP4|NVFP4|BF16|FP?16|FP?32))$", re.IGNORECASE
)


def label_of(file: ModelFile) -> str:
    """Model and build, such as "pebble · q4_k_m": from the manifest beside the file, else from the
    file's name."""
    from quantize.manifest import load_manifest

    with suppress(IngotError):  # there is none; and a damaged one keeps no file from running
        manifest = load_manifest(file.path.parent)
        for entry in manifest.files:
            if entry.path.rstrip("/") == file.path.name:
                return f"{manifest.model.name} · {entry.recipe}"
    kind = _TYPE.search(file.name)
    if kind and file.path.is_file():
        return f"{file.name[: kind.start()]} · {kind[1].lower()}"
    return file.name


def quality_at(path: Path) -> str:
    """Recorded quality of the model file at ``path``, empty if the file cannot be read."""
    from app.models.catalog import entry_of, file_quality, quality_text

    try:
        return quality_text(file_quality(entry_of(path)))
    except (IngotError, OSError) as error:
        log.info("nothing is known of the quality of %s: %s", path, error)
        return ""


def details_of(choice: LoadChoice, stats: EngineStats) -> str:
    """Runtime, where it computes, and the draft: "llamacpp · 2 threads", "llamacpp · GPU 24/24
    layers · draft small.gguf"."""
    file, threads = choice.file, choice.settings.threads
    where = "CPU" if threads is None else f"{threads} thread{'s' if threads > 1 else ''}"
    if stats.gpu_layers:
        where = f"GPU {stats.gpu_layers}/{file.layers} layers"
    draft = f" · draft {stats.draft}" if stats.draft else ""
    return f"{file.runtime} · {where}{draft}"
