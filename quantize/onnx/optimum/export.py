"""A model to an ONNX folder by optimum's exporter: its float graph, then what we make of it."""

import importlib
import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from quantize.children.process import run_child
from quantize.errors import SourceError
from quantize.onnx.optimum.finish import finish
from quantize.onnx.optimum.overlay import optimum_overlay, overlay_key
from quantize.onnx.variants import Mix
from quantize.progress.console import Reporter
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel

# Neither the tokenizer, which transformers 4 may be unable to read, nor anything that is no part of
# the model.
_WANTED = ("generation_config.json", "*.safetensors", "*.safetensors.index.json")


def build_with_optimum(
    source: SourceModel,
    recipe: Recipe,
    out: Path,
    progress: Reporter,
    exports: Path,
    mix: Mix | None = None,
) -> list[str]:
    """Build the folder ``out``; returns what the user should know, the reason for this route first.

    The float export is kept in ``exports`` for the next recipe.
    """
    name = source.architecture
    made, record = exports / "optimum-fp32", exports / "optimum-fp32.json"
    identity = json.dumps({"source": source.fingerprint().hash, "overlay": overlay_key()})
    # The record comes once the export has been compared with the original.
    fresh = not record.is_file() or record.read_text(encoding="utf-8") != identity
    if fresh:
        record.unlink(missing_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        overlay = optimum_overlay(progress)
        with progress.stage(f"exporting {name} by optimum"):
            call = partial(_export, overlay, source.folder, made, code=source.trust_remote_code)
            refused = run_child(call, "exporting by optimum", exports)
        if refused:
            raise SourceError(
                f"neither onnxruntime-genai's builder nor optimum knows {name}; use --to gguf\n"
                f"  {refused}"
            )
    finishing = partial(finish, source, made, out, recipe, mix, check=fresh)
    notes = run_child(finishing, f"building {recipe.name}", out.parent, torch=True)
    record.write_text(identity, encoding="utf-8")
    return [f"exported by optimum: onnxruntime-genai's builder does not know {name}", *notes]


def _export(overlay: Path, model: Path, out: Path, *, code: bool) -> str | None:
    """Runs in a child process: export the Hugging Face folder ``model`` in 32 bits into ``out``;
    why optimum cannot do it, if so.

    ``overlay`` is the folder of `optimum_overlay`; ``code`` trusts the model's.
    """
    sys.path.insert(0, str(overlay))  # in front of the transformers that all else here uses
    importlib.invalidate_caches()
    from optimum.exporters.onnx import main_export  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(dir=out.parent) as staged:
        _stage(model, Path(staged), code=code)
        try:
            main_export(
                staged,
                output=out,
                task="text-generation-with-past",
                dtype="fp32",
                do_validation=False,  # against transformers 4; `finish` takes the right one
                local_files_only=True,
                trust_remote_code=code,
            )
        except (ValueError, KeyError) as error:
            if "not supported" in str(error) or "custom or unsupported" in str(error):
                return str(error)
            raise
    return None


def _stage(model: Path, staged: Path, *, code: bool) -> None:
    """A folder of links to the weights beside a configuration that transformers 4 understands."""
    for pattern in (*_WANTED, *(("*.py",) if code else ())):
        for path in model.glob(pattern):
            (staged / path.name).symlink_to(path.resolve())
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (staged / "config.json").write_text(json.dumps(older_config(config)), encoding="utf-8")


def older_config(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` as transformers 4 writes it.

    transformers 5 keeps what belongs to rotary embeddings in ``rope_parameters``, which 4 ignores
    without a word: it would take its defaults.
    """
    config = dict(config)
    rope = config.pop("rope_parameters", None)
    if not isinstance(rope, dict):
        return config
    local = rope.get("sliding_attention")
    if isinstance(local, dict):
        config["rope_local_base_freq"] = local["rope_theta"]
        rope = rope["full_attention"]
    rope = dict(rope)
    if (theta := rope.pop("rope_theta", None)) is not None:
        config["rope_theta"] = config["rotary_emb_base"] = theta
    if (share := rope.pop("partial_rotary_factor", None)) is not None:
        config["partial_rotary_factor"] = config["rotary_pct"] = share
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = rope
    return config
