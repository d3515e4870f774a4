"""report.html: one file that needs nothing else, in light and dark."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from quantize.manifest import FileEntry, Manifest
from quantize.report.chart import make_chart
from quantize.report.facts import (
    alternatives,
    comparable_parts,
    outdone,
    recommended,
    sentence,
    title,
)
from quantize.report.figures import APART, Figure, figures_of, how_measured
from quantize.report.picture import draw_svg

_STYLE = Path(__file__).with_name("page.css")


def render(manifest: Manifest) -> str:
    """The page as text. Everything that comes from the manifest is escaped."""
    model, entries = manifest.model, manifest.files
    about = f"{escape(model.architecture)}, {model.parameters / 1e6:,.1f} M parameters"
    style = _STYLE.read_text(encoding="utf-8")
    main, *apart = comparable_parts(manifest)
    chart = make_chart(main.files)
    body = [f"<h1>{escape(model.name)}, quantized</h1>", f'<p class="soft">{about}</p>']
    best = recommended(main.files)
    if best is not None:
        body.append(_pick(main, best))
    if chart is not None:
        body += [
            "<h2>Size against divergence</h2>",
            '<p class="soft">Left is smaller, down is closer to the original model.</p>',
            draw_svg(chart),
        ]
    if entries:
        body += ["<h2>All figures</h2>", _table(main, best)]
    body += ["<h2>How it was measured</h2>"]
    body += [f"<p>{escape(text)}</p>" for text in how_measured(main)]
    for part in apart:
        body += ["<h2>Measured otherwise</h2>", f"<p>{escape(APART)}</p>", _table(part, None)]
        body += [f"<p>{escape(text)}</p>" for text in how_measured(part)]
    if any(entry.notes for entry in entries):
        body += ["<h2>Notes</h2>", "<ul>"]
        body += [
            f"<li><b>{escape(entry.recipe)}</b>: {escape('; '.join(entry.notes))}</li>"
            for entry in entries
            if entry.notes
        ]
        body.append("</ul>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(model.name)}, quantized</title>\n<style>\n{style}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _pick(manifest: Manifest, best: FileEntry) -> str:
    said = [f"{label}: {title(entry)}" for label, entry in alternatives(manifest)]
    others = "".join(f"<li>{escape(text)}</li>" for text in (*said, *outdone(manifest)))
    return (
        f'<div class="pick"><p>{escape(sentence(manifest, best))}</p>'
        + (f"<ul>{others}</ul>" if others else "")
        + "</div>"
    )


def _table(manifest: Manifest, best: FileEntry | None) -> str:
    columns = figures_of(manifest.files)
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in columns)
    original = [column.original(manifest.model) for column in columns]
    rows = [_row("the original", original, "original")]
    rows += [_file_row(entry, columns, entry is best) for entry in manifest.files]
    return (
        f'<div class="wide"><table><thead><tr><th>file</th>{head}</tr></thead><tbody>'
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _file_row(entry: FileEntry, columns: Sequence[Figure], best: bool) -> str:
    name = f"{entry.recipe} ({entry.format.upper()})"
    return _row(name, [column.of(entry) for column in columns], "best" if best else "")


def _row(name: str, figures: Sequence[str], kind: str) -> str:
    cells = "".join(f"<td>{escape(text) or '-'}</td>" for text in figures)
    return f'<tr class="{kind}"><td>{escape(name)}</td>{cells}</tr>'
