"""Runs in a child process: merge an adapter into its base with peft."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

from quantize.errors import SourceError
from quantize.source.model import SourceModel
from quantize.source.tensors import read_tensors

_WEIGHTS = "adapter_model.safetensors"
_LOST = "missing adapter keys"  # peft's words when weights of the adapter found no place


def merge(source: SourceModel, adapter: Path, out: Path) -> None:
    """Write the merged model to the folder ``out``, in the types of ``source``.

    Raises SourceError when peft cannot place every weight of the adapter. ``safe_merge`` makes peft
    refuse weights that would become NaN.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        source.folder, dtype="auto", trust_remote_code=source.trust_remote_code
    )
    rows = _embedding_rows(adapter)
    if rows is not None and rows != model.get_input_embeddings().weight.shape[0]:
        logging.info("the adapter has a vocabulary of %d", rows)
        model.resize_token_embeddings(rows, mean_resizing=False)
    _require_modules(model, adapter)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            combined = PeftModel.from_pretrained(model, adapter)
        except (ValueError, RuntimeError, KeyError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SourceError(f"the adapter does not fit this model: {first}") from error
    lost = [str(item.message) for item in said if _LOST in str(item.message)]
    if lost:
        raise SourceError(f"the adapter does not fit this model: {lost[0][:300]}")
    merged = combined.merge_and_unload(safe_merge=True)
    merged.save_pretrained(out)


def _require_modules(model: Any, adapter: Path) -> None:
    """Refuse weights for modules that the model lacks: peft would leave them out silently."""
    modules = {name for name, _ in model.named_modules()}
    for name in read_tensors(adapter / _WEIGHTS):
        match = re.fullmatch(r"base_model\.model\.(.+?)\.lora_\w+(?:\..+)?", name)
        if match and match[1] not in modules:
            raise SourceError(f"the adapter does not fit this model, which has no {match[1]}")


def _embedding_rows(adapter: Path) -> int | None:
    """Rows of an embedding that was trained whole, None when the base's is kept."""
    for name, tensor in read_tensors(adapter / _WEIGHTS).items():
        whole = "lora_" not in name and ("embed_tokens" in name or "wte" in name)
        if whole and len(tensor.shape) == 2:
            return tensor.shape[0]
    return None
