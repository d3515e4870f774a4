"""Runs in a child process with the overlay's packages: optimum's exporter."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

# Neither the tokenizer, which transformers 4 may be unable to read, nor anything that is no part of
# the model.
_WANTED = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")


def export(overlay: str, model: str, out: str, trust_remote_code: bool) -> str | None:
    """Export the Hugging Face folder ``model`` in 32 bits into the folder ``out``.

    ``overlay`` is the folder of `quantize.onnx.overlay`. Returns None, or why optimum cannot do it.
    """
    sys.path.insert(0, overlay)  # in front of the transformers that everything else here uses
    importlib.invalidate_caches()
    staged = Path(out).with_name(f"{Path(out).name}-source")
    _stage(Path(model), staged, code=trust_remote_code)
    from optimum.exporters.onnx import main_export  # type: ignore[import-not-found]

    try:
        main_export(
            str(staged),
            output=out,
            task="text-generation-with-past",
            dtype="fp32",
            do_validation=False,  # against transformers 4; the caller compares with the right one
            local_files_only=True,
            trust_remote_code=trust_remote_code,
        )
    except (ValueError, KeyError) as error:
        if "not supported" in str(error) or "custom or unsupported" in str(error):
            return str(error)
        raise
    return None


def _stage(model: Path, staged: Path, *, code: bool) -> None:
    """A folder of links to the weights beside a configuration that transformers 4 understands."""
    staged.mkdir(parents=True, exist_ok=True)
    for pattern in (*_WANTED, *(("*.py",) if code else ())):
        for path in model.glob(pattern):
            link = staged / path.name
            link.unlink(missing_ok=True)
            os.symlink(path.resolve(), link)
    link = staged / "config.json"
    config = json.loads(link.read_text(encoding="utf-8"))
    link.unlink()
    link.write_text(json.dumps(older_config(config), indent=1), encoding="utf-8")


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
