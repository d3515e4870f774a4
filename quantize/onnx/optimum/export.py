"""Runs in a child process with the overlay's packages: optimum's exporter."""

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

# Neither the tokenizer, which transformers 4 may be unable to read, nor anything that is no part of
# the model.
_WANTED = ("generation_config.json", "*.safetensors", "*.safetensors.index.json")


def export(overlay: Path, model: Path, out: Path, *, code: bool) -> str | None:
    """Export the Hugging Face folder ``model`` in 32 bits into the folder ``out``.

    ``overlay`` is the folder of `optimum_overlay`; ``code`` trusts the model's. Returns None, or
    why optimum cannot do it.
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
