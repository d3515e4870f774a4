"""Pickled weights, turned into safetensors once, in a child process that may load tensors only."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from quantize.children import counted, run_child
from quantize.disk import made_whole, require_room, sha256_of
from quantize.errors import SourceError, first_line
from quantize.progress import Reporter
from quantize.source.files import INDEX, PICKLE_INDEX, PICKLE_SINGLE, SINGLE, weight_files
from runtimes.paths import cache_dir


def pickles(folder: Path) -> tuple[Path, ...]:
    """The pickled weight files of ``folder``, in order; none when it has none."""
    return weight_files(folder, PICKLE_INDEX, PICKLE_SINGLE)[0]


def converted(folder: Path, progress: Reporter) -> Path:
    """A folder below the cache with the same model in safetensors; made when it is not there yet.

    Raises SourceError for a file that holds anything but tensors, DiskFullError, OutOfMemoryError.
    """
    files = pickles(folder)
    digest = hashlib.sha256()
    for path in files:
        digest.update(bytes.fromhex(sha256_of(path)))
    base = cache_dir() / "unpickled" / digest.hexdigest()[:32]
    name = folder.resolve().name
    weights = base / "weights"
    if not weights.is_dir():
        require_room(base, sum(path.stat().st_size for path in files), "converting pickled weights")
        with (
            progress.stage("converting pickled weights to safetensors"),
            made_whole(weights) as made,
        ):
            made.mkdir()
            call = partial(_convert, files, made)
            run_child(call, "converting pickled weights", made.parent, progress, torch=True)
    # Of any name, also that of the weights, which are kept.
    model = base / "model" / name
    # The other files are links: they may be edited, the weights above may not.
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir(parents=True)
    for path in folder.iterdir():
        if path.is_file() and path not in files and path.name not in (INDEX, SINGLE, PICKLE_INDEX):
            (model / path.name).symlink_to(path.resolve())
    for path in weights.iterdir():
        os.link(path, model / path.name)
    return model


def _convert(files: Sequence[Path], out: Path) -> None:
    """Runs in a child process: one safetensors file for each of ``files``, and their index.

    ``weights_only`` lets torch's unpickler make tensors and plain containers, nothing else. Tensors
    that share memory (tied weights) are written once, under the name that comes first.
    """
    import torch
    from safetensors.torch import save_file

    places: dict[str, str] = {}
    total = 0
    for number, name in enumerate(counted(files, "files"), start=1):
        try:
            data = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            raise SourceError(
                f"{name} is damaged, or holds more than tensors: {first_line(error)}"
            ) from error
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
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (out / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
