"""Put the three forms of the report beside the files."""

from pathlib import Path

from quantize.manifest import Manifest
from quantize.report import card, page
from quantize.report.picture import draw_png

FILES = ("report.html", "report.png", "README.md")


def write_report(folder: Path, manifest: Manifest, work: Path | None = None) -> None:
    """Write report.html, report.png and README.md into ``folder``, each in one step.

    ``work`` is a folder on the same disk where they are written first. Without measurements the
    chart and the recommendation are left out. Raises OSError.
    """
    partial = {name: (work or folder) / f".{name}.partial" for name in FILES}
    try:
        partial["report.html"].write_text(page.render(manifest), encoding="utf-8")
        partial["README.md"].write_text(card.render(manifest), encoding="utf-8")
        draw_png(manifest, partial["report.png"])
        for name, path in partial.items():
            path.replace(folder / name)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)
