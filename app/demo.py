"""`make demo`: the main job on the demo model, by the commands that a user would type.

Quantize Pebble to four files and measure them, answer a prompt file on both runtimes, ask each file
one question. Every command is shown before it runs; the first that fails ends the demo with its
exit code.
"""

import itertools
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from app.console import emit, note
from quantize.manifest import load_manifest
from runtimes.machine import processes

ROOT = Path(__file__).resolve().parent.parent
MODEL = Path("assets/pebble")
BUILT = Path("assets/pebble-built")
PROMPTS = Path("assets/prompts/demo.jsonl")
QUESTION = "What is the capital of France?"
# One file of each runtime answers the prompt file.
BATCH_RECIPES = ("q8_0", "onnx-int8")
SHOWN = 4


def main() -> int:
    """Run the demo from the project's folder; the exit code is that of the first failing step."""
    started = time.monotonic()
    try:
        _say(f"1. Four files out of {MODEL}, checked and measured")
        _run("quantize", MODEL, "--out", BUILT)
        _say("2. One question to each file")
        for entry in load_manifest(ROOT / BUILT).files:
            _run("app", "run", BUILT, QUESTION, "--recipe", entry.recipe)
        _say(f"3. {PROMPTS} on both runtimes")
        with tempfile.TemporaryDirectory() as folder:
            for recipe in BATCH_RECIPES:
                out = Path(folder) / f"{recipe}.jsonl"
                _run("app", "batch", PROMPTS, out, "--model", BUILT, "--recipe", recipe)
                with out.open(encoding="utf-8") as lines:
                    for record in map(json.loads, itertools.islice(lines, SHOWN)):
                        emit(f"{record['id']}: {record['response']}\n")
    except subprocess.CalledProcessError as error:
        code = error.returncode
        note(f"the demo stopped: the last command ended with exit code {code}", style="bold red")
        return code
    except KeyboardInterrupt:
        return 130
    _say(f"Done in {time.monotonic() - started:.0f} s. Now try:")
    emit(f'.venv/bin/ingot run {BUILT} "Tell me a story about a fox."\n')
    emit(f".venv/bin/ingot bench {BUILT}\n")
    return 0


def _say(text: str) -> None:
    note(f"\n{text}", style="bold")


def _run(module: str, *arguments: object) -> None:
    shown = "quantize" if module == "quantize" else "ingot"
    note(f"$ {shlex.join([shown, *map(str, arguments)])}", style="dim")
    sys.stdout.flush()
    processes.run("-m", module, *arguments, cwd=ROOT).check_returncode()


if __name__ == "__main__":
    sys.exit(main())
