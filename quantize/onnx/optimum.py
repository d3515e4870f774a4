"""Graphs by optimum's exporter, for architectures that onnxruntime-genai's builder does not know.

The exporter needs transformers below 4.58, the rest of Ingot a newer one. So its packages are
installed into a folder of Ingot's cache (the overlay), once per machine, and only the child process
that exports has that folder on its path, in front of everything else; torch and onnx are shared.
"""

import contextlib
import hashlib
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from quantize.children import last_lines, run_child
from quantize.disk import sha256_of, sha256_text
from quantize.errors import DiskFullError, SourceError, ToolError
from quantize.fromjson import GARBLED
from quantize.onnx.optimum_graph import finish
from quantize.progress import Reporter
from quantize.recipes import Mix, Recipe
from quantize.source import SourceModel
from runtimes.errors import IngotError, RuntimeMissingError
from runtimes.machine.locks import Lock, another_run
from runtimes.machine.processes import Child
from runtimes.paths import cache_dir

logger = logging.getLogger(__name__)

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_RECORD = "ingot-overlay.json"
_NO_NETWORK = ("connection", "resolve", "timed out", "retries", "no matching distribution", "proxy")


def optimum_overlay(progress: Reporter) -> Path:
    """The folder to put in front of the exporter's path, installed now where it is not there whole.

    Raises RuntimeMissingError when pip cannot fetch the packages, DiskFullError or ToolError when
    it cannot install them.
    """
    root = cache_dir() / "optimum"
    target = root / overlay_key()
    if is_whole(target):
        return target
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root, progress):
        if not is_whole(target):  # another run was not faster
            for stale in root.glob(".install-*"):  # we hold the lock: whoever made it is dead
                shutil.rmtree(stale, ignore_errors=True)
            if target.exists():
                progress.note(f"optimum's exporter in {target} is damaged: installing it again")
                shutil.rmtree(target)
            with progress.stage("installing optimum's exporter, once per machine"):
                _install(root, target, progress)
    return target


def _alone(root: Path, progress: Reporter) -> Lock:
    """Wait for other runs that install."""
    try:
        return Lock(root)
    except BlockingIOError:
        with progress.stage(f"waiting for {another_run(root)} that installs optimum's exporter"):
            return Lock(root, wait=True)


def overlay_key() -> str:
    """A name for what is installed: it changes with the pins, the Python and the platform."""
    parts = (REQUIREMENTS.read_bytes(), sys.version_info[:2], sysconfig.get_platform())
    return sha256_text("".join(map(repr, parts)))[:16]


def is_whole(folder: Path) -> bool:
    """Whether every file is as it was when the folder was installed."""
    with contextlib.suppress(OSError, *GARBLED):
        record = json.loads((folder / _RECORD).read_bytes())
        return bool(record["sha256"] == _tree_hash(folder))
    return False


def _tree_hash(folder: Path) -> str:
    """sha256 over names and contents, without the bytecode that Python adds."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".pyc" or path.name == _RECORD or not path.is_file():
            continue
        digest.update(f"{path.relative_to(folder)}\0".encode() + bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()


def _install(root: Path, target: Path, progress: Reporter) -> None:
    """The pinned wheels and nothing that they ask for: that is pinned too, or shared."""
    requirements = REQUIREMENTS.read_text()
    with tempfile.TemporaryDirectory(prefix=".install-", dir=root) as scratch:
        made = Path(scratch) / "packages"
        command = [
            *"-m pip install --disable-pip-version-check --no-input --no-deps".split(),
            *"--only-binary :all: --require-hashes --no-compile --progress-bar off".split(),
            *("--target", str(made), "-r", str(REQUIREMENTS)),
        ]
        environment = {"TMPDIR": scratch, "PYTHONUNBUFFERED": "1"}
        lines: list[str] = []
        with Child(
            *command, environment=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    lines.append(line.decode(errors="replace").rstrip())
                    logger.debug("pip: %s", lines[-1])
                    seen = sum(line.startswith("Collecting") for line in lines)
                    progress.advance(max(0, seen - 1), requirements.count("=="), "packages")
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise _failure(lines)
        record = {"sha256": _tree_hash(made), "requirements": requirements}
        (made / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(made, target)


def _failure(lines: list[str]) -> Exception:
    text = "\n".join(lines)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return DiskFullError(f"the disk of {cache_dir()} is full: optimum's exporter takes 80 MB")
    if "No module named pip" in text:
        return RuntimeMissingError(
            "optimum's exporter is installed with pip, which this Python has not: run"
            f" {sys.executable} -m ensurepip, or use --to gguf"
        )
    kind: type[IngotError] = ToolError
    why = "optimum's exporter could not be installed"
    if "DO NOT MATCH THE HASHES" in text:
        why = (
            "a package of optimum's exporter is not the one that was tested, so it was not"
            " installed. Check the package index that pip uses, or use --to gguf"
        )
    elif any(sign in text.lower() for sign in _NO_NETWORK):
        kind = RuntimeMissingError
        why = (
            "optimum's exporter could not be downloaded. It is needed once per machine: connect it"
            " to a package index and run this again, or use --to gguf"
        )
    return kind(f"{why}\n{last_lines(text)}")


# Neither the tokenizer, which transformers 4 may be unable to read, nor anything that is no part of
# the model.
_WANTED = ("generation_config.json", "*.safetensors", "*.safetensors.index.json")


def build_with_optimum(
    source: SourceModel,
    recipe: Recipe,
    out: Path,
    progress: Reporter,
    exports: Path,
    mix: Mix | None,
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
    config = json.loads((model / "config.json").read_bytes())
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
