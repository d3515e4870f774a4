"""Hook of Hatchling for the wheel: `app`, `quantize`, `runtimes` are put into the package `ingot`.

Other people's packages have such names, too. In a wheel every import of the three is one of
`ingot.app`, `ingot.quantize` or `ingot.runtimes`; names that stand in texts go through `own` of
`runtimes/__init__.py`. A checkout, and what is installed with `pip install -e`, is left as it is.
"""

import ast
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGES = ("app", "quantize", "runtimes")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


class WheelLayout(BuildHookInterface):  # type: ignore[type-arg]
    """Puts rewritten copies into a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatchling calls it before it collects what goes into the wheel."""
        if version == "editable":
            return
        root = Path(self.root)
        self._work = tempfile.TemporaryDirectory(prefix="ingot-wheel-")
        made = Path(self._work.name) / "ingot"
        shutil.copytree(root / "ingot", made, ignore=_LEFT_OUT)
        for name in _PACKAGES:
            shutil.copytree(root / name, made / name, ignore=_LEFT_OUT)
        for path in made.rglob("*.py"):
            path.write_text(moved(path.read_text(encoding="utf-8"), str(path)), encoding="utf-8")
        build_data["force_include"][str(made)] = "ingot"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Hatchling calls it when the wheel is written."""
        if version != "editable":
            self._work.cleanup()


def moved(source: str, name: str) -> str:
    """``source`` with its imports of the three packages from `ingot`; lines stay where they are.

    Raises ValueError for `import app.x`, which would give another name than before.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] in _PACKAGES:
                    raise ValueError(f"{name}:{node.lineno}: write `from ... import ...`")
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").split(".")[0] in _PACKAGES
        ):
            line, at = lines[node.lineno - 1], node.col_offset  # only ASCII stands before it
            lines[node.lineno - 1] = line[:at] + line[at:].replace("from ", "from ingot.", 1)
    return "".join(lines)
