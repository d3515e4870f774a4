"""Put the three forms of the report beside the files."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from quantize.manifest import Manifest
from quantize.report import card, page

logger = logging.getLogger(__name__)

FILES = ("report.html", "report.png", "README.md")


def write_report(folder: Path, manifest: Manifest, work: Path | None = None) -> None:
    """Write report.html, report.png and README.md into ``folder``, each in one step.

    ``work`` is a folder on the same disk where they are written first. Without matplotlib there is
    no picture; without measurements the chart and the recommendation are left out. Raises OSError.
    """
    partial = {name: (work or folder) / f".{name}.partial" for name in FILES}
    try:
        partial["report.html"].write_text(page.render(manifest), encoding="utf-8")
        partial["README.md"].write_text(card.render(manifest), encoding="utf-8")
        if importlib.util.find_spec("matplotlib") is None:
            logger.warning("report.png is left out: matplotlib is not installed")
            (folder / "report.png").unlink(missing_ok=True)  # an old one would be another's
        else:
            from quantize.report.picture import draw_picture

            draw_picture(manifest, partial["report.png"])
        for name, path in partial.items():
            if path.exists():
                path.replace(folder / name)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)
