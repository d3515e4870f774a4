"""A model of a realistic shape with random weights, built once and kept in the cache folder.

The weights mean nothing; the speed of a forward pass does not depend on their values.
"""

import shutil
import subprocess
from pathlib import Path

from quantize.manifest import NAME, load_manifest
from quantize.source.synthetic import SHAPES
from runtimes.errors import IngotError, RequestError
from runtimes.machine import processes
from runtimes.paths import cache_dir

RECIPES = ("q4_0", "q8_0", "onnx-int4", "onnx-int8")


def ensure_built(shape: str) -> Path:
    """The folder with the built files of the random model ``shape``, made if it is not there.

    Raises RequestError for a shape that there is not, such as a path, whose folder would be removed
    below; IngotError when the build fails: `quantize` has then said why on stderr.
    """
    if shape not in SHAPES:
        raise RequestError(f"--random: there is no shape {shape}; there are: {', '.join(SHAPES)}")
    folder = cache_dir() / "bench" / shape
    built = folder.with_name(f"{shape}-built")
    have = {entry.recipe for entry in load_manifest(built).files} if (built / NAME).exists() else ()
    missing = [name for name in RECIPES if name not in have]
    if not missing:
        return built
    # A process of its own each: torch must not stay in the one that takes times.
    program = (
        "import sys, pathlib; from quantize.source.synthetic import make_random_model; "
        "make_random_model(pathlib.Path(sys.argv[1]), sys.argv[2])"
    )
    shutil.rmtree(folder, ignore_errors=True)
    _run("-c", program, folder, shape, what=f"making the model {shape}")
    options = [option for name in missing for option in ("--recipe", name)]
    command = ("-m", "quantize", folder, "--out", built, "--no-measure", *options)
    _run(*command, what=f"building the files of {shape}")
    shutil.rmtree(folder)
    return built


def _run(*arguments: object, what: str) -> None:
    done = processes.run(*arguments, stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        raise IngotError(f"{what} failed with exit code {done.returncode}")
