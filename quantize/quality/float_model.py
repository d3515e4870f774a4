"""Runs in a child process: the original model, computing in single precision.

Where the weights fit into memory in single precision they are held so. Where they do not, they stay
in the precision of the checkpoint (16 bits, mapped from the files as far as the loader allows), and
a module's weights are widened while it runs. Either way every product and sum is in single
precision: an 8B model takes its 16 GB of weights and, for a moment, its largest matrix in 32 bits.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from runtimes.machine.hardware import memory_now

logger = logging.getLogger(__name__)

_SHARE = 0.5  # of the memory that is free, for weights in single precision
_SMALL = 2**20  # parameters of a module that are widened once and for all


def load_network(model: Path, *, trust_remote_code: bool = False, wide: bool | None = None) -> Any:
    """The network of the Hugging Face folder ``model``, ready to compute in single precision.

    ``wide`` says whether weights are held in single precision; None decides by the free memory.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if wide is None:
        config = AutoConfig.from_pretrained(
            model, local_files_only=True, trust_remote_code=trust_remote_code
        )
        needed = _weight_bytes(model) * 4 / getattr(config.dtype, "itemsize", 4)
        wide = needed < _SHARE * memory_now()[1]
    network = AutoModelForCausalLM.from_pretrained(
        model,
        local_files_only=True,
        trust_remote_code=trust_remote_code,
        dtype=torch.float32 if wide else "auto",
    ).eval()
    if not wide:
        logger.info("weights are widened to single precision as they are used")
        _compute_in_single_precision(network)
    return network


def describe_precision(network: Any) -> str:
    """How ``network`` holds its weights, in words."""
    import torch

    held = {str(p.dtype).removeprefix("torch.") for p in network.parameters() if p.ndim > 1}
    narrow = sorted(held - {str(torch.float32).removeprefix("torch.")})
    if not narrow:
        return "float32"
    return f"float32 arithmetic on {' and '.join(narrow)} weights"


def _weight_bytes(folder: Path) -> int:
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    return sum(path.stat().st_size for path in files)


def _compute_in_single_precision(network: Any) -> None:
    """Widen each module's own weights while it runs; small ones and buffers for good."""
    import torch

    for module in network.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.float())
        narrow = [
            p
            for p in module.parameters(recurse=False)
            if p.is_floating_point() and p.dtype != torch.float32
        ]
        if not narrow:
            continue
        if type(module) is torch.nn.Embedding:  # looks up a few rows: those are widened
            module.register_forward_hook(lambda _module, _inputs, rows: rows.float())
        elif sum(p.numel() for p in narrow) <= _SMALL:
            for p in narrow:
                p.data = p.data.float()
        else:
            _Widened(module, narrow)


class _Widened:
    """Swaps a module's weights for copies in single precision from its call to its return."""

    def __init__(self, module: Any, parameters: list[Any]) -> None:
        self._parameters = parameters
        self._narrow: list[Any] = []
        module.register_forward_pre_hook(self._widen)
        module.register_forward_hook(self._restore, always_call=True)

    def _widen(self, _module: Any, _inputs: Any) -> None:
        self._narrow = [p.data for p in self._parameters]
        for p in self._parameters:
            p.data = p.data.float()

    def _restore(self, _module: Any, _inputs: Any, _output: Any) -> None:
        for p, data in zip(self._parameters, self._narrow, strict=True):
            p.data = data
        self._narrow = []


@contextlib.contextmanager
def _quiet_length_warning() -> Any:
    """A text longer than the model's context is meant to be: it is cut into windows."""
    log = logging.getLogger("transformers.tokenization_utils_base")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def encode(
    model: Path, text: str, *, trust_remote_code: bool = False
) -> tuple[list[int], int | None]:
    """The ids of ``text``, and the BOS id if the tokenizer begins every text with it.

    An EOS that the tokenizer adds at the end is taken off.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        model, local_files_only=True, trust_remote_code=trust_remote_code
    )
    with _quiet_length_warning():
        plain = [int(i) for i in tokenizer(text, add_special_tokens=False).input_ids]
        special = [int(i) for i in tokenizer(text[:1]).input_ids]
    bos = tokenizer.bos_token_id
    if bos is None or not special or special[0] != bos:
        return plain, None
    return [int(bos), *plain], int(bos)
