"""Runs in a child process: pickled weights to safetensors."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

from quantize.children.child import report_progress
from quantize.errors import SourceError
from quantize.source.files import INDEX, SINGLE


def convert(files: Sequence[Path], out: Path) -> None:
    """Write one safetensors file for each of ``files`` to the folder ``out``, with an index when
    there are several. Raises SourceError when one holds anything but tensors.

    ``weights_only`` lets torch's unpickler make tensors and plain containers, nothing else. Tensors
    that share memory (tied weights) are written once, under the name that comes first.
    """
    import torch
    from safetensors.torch import save_file

    places: dict[str, str] = {}
    total = 0
    for number, name in enumerate(files, start=1):
        try:
            data = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SourceError(f"{name} is damaged, or holds more than tensors: {first}") from error
        if not isinstance(data, dict):
            raise SourceError(f"{name} holds no table of tensors")
        seen: dict[tuple[int, tuple[int, ...]], str] = {}
        tensors: dict[str, torch.Tensor] = {}
        for key, value in data.items():
            if not isinstance(value, torch.Tensor):
                continue
            place = (value.data_ptr(), tuple(value.shape))
            if value.numel() and place in seen:
                continue
            seen[place] = key
            # A view would be written with all the memory that it looks into.
            tensors[key] = value.clone(memory_format=torch.contiguous_format)
        target = (
            SINGLE if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        )
        save_file(tensors, out / target, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, target))
        total += sum(t.numel() * t.element_size() for t in tensors.values())
        del data, tensors
        report_progress(number, len(files), "files")
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (out / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
