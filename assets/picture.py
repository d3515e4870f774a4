"""Draw assets/demo.svg: the table of the files that `make demo` built and measured.

Run it after `make demo`:  .venv/bin/python assets/picture.py
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from quantize.manifest import load_manifest
from quantize.report.table import build_table

HERE = Path(__file__).resolve().parent


def main() -> int:
    manifest = load_manifest(HERE / "pebble-built")
    console = Console(record=True, width=118, file=io.StringIO(), force_terminal=True)
    console.print("$ quantize assets/pebble", highlight=False)
    recipes = tuple(entry.recipe for entry in manifest.files)
    console.print(build_table(manifest, recipes, console.width))
    console.save_svg(str(HERE / "demo.svg"), title="Ingot")
    return 0


if __name__ == "__main__":
    sys.exit(main())
