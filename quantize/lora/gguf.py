"""A LoRA adapter as a GGUF file, which llama.cpp loads beside a quantized model of its base."""

import runpy
import sys
import tempfile
from functools import partial
from pathlib import Path

from quantize.children.process import run_child
from quantize.disk import full_disk_explained
from quantize.errors import SourceError, UsageError
from quantize.gguf.converter import LORA_SCRIPT, converter_folder, load_converter
from quantize.lora.adapter import Adapter, open_adapter, require_match
from quantize.options import SourceOptions
from quantize.progress.console import Reporter
from quantize.source.open import open_source
from runtimes.untrusted import inside


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
