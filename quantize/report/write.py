"""The report beside the files: report.html, report.png, and README.md, a hub's model card."""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quantize.manifest import FileEntry, Manifest
from quantize.report.facts import (
    APART,
    alternatives,
    bits_of,
    by_layer,
    comparable_parts,
    depth,
    figures_of,
    how_measured,
    make_chart,
    outdone,
    recommended,
    savings,
    sentence,
    summary,
    texts_of,
    title,
)
from quantize.report.picture import draw_picture, draw_svg
from runtimes.output import html, markdown

FILES = ("report.html", "report.png", "README.md")

_STYLE = Path(__file__).with_name("page.css")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def write_report(folder: Path, manifest: Manifest, work: Path | None = None) -> None:
    """Write report.html, report.png and README.md into ``folder``, each in one step.

    ``work`` is a folder on the same disk where they are written first. Without measurements the
    chart and the recommendation are left out. Raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix=".report-", dir=work or folder) as made:
        partial = {name: Path(made) / name for name in FILES}  # nothing is there: no link
        partial["report.html"].write_text(render_page(manifest), encoding="utf-8")
        partial["README.md"].write_text(render_card(manifest), encoding="utf-8")
        draw_picture(manifest, partial["report.png"])
        for name, path in partial.items():
            path.replace(folder / name)


def _choices(manifest: Manifest) -> list[str]:
    """Sentences beside the recommended file: which others are best at what, and which at
    nothing."""
    found = [f"{label}: {title(entry)}" for label, entry in alternatives(manifest)]
    return [*found, *outdone(manifest)]


def _notes(manifest: Manifest) -> list[tuple[str, str]]:
    return [(entry.recipe, "; ".join(entry.notes)) for entry in manifest.files if entry.notes]


def render_page(manifest: Manifest) -> str:
    """report.html, which needs no other file, in light and dark. All of the manifest's text is
    escaped."""
    model = manifest.model
    about = f"{html(model.architecture)}, {model.parameters / 1e6:,.1f} M parameters"
    main, *apart = comparable_parts(manifest)
    body = [f"<h1>{html(model.name)}, quantized</h1>", f'<p class="soft">{about}</p>']
    if (best := recommended(main.files)) is not None:
        items = "".join(f"<li>{html(text)}</li>" for text in _choices(main))
        more = f"<ul>{items}</ul>" if items else ""
        body.append(f'<div class="pick"><p>{html(sentence(main, best))}</p>{more}</div>')
    if (chart := make_chart(main.files)) is not None:
        body += [
            "<h2>Size against divergence</h2>",
            '<p class="soft">Left is smaller, down is closer to the original model.</p>',
            draw_svg(chart),
        ]
    if manifest.files:
        body += ["<h2>All figures</h2>", _html_table(main, best)]
    if drawn := [text for entry in manifest.files if (text := _allocation(entry))]:
        body += ["<h2>Chosen types</h2>", *drawn]
    if told := savings(main):
        body += _html_paragraphs(told)
    body += ["<h2>How it was measured</h2>", *_html_paragraphs(how_measured(main))]
    for part in apart:
        body += ["<h2>Measured otherwise</h2>", *_html_paragraphs([APART])]
        body += [_html_table(part, None), *_html_paragraphs(how_measured(part))]
    if notes := _notes(manifest):
        items = "\n".join(f"<li><b>{html(name)}</b>: {html(text)}</li>" for name, text in notes)
        body += ["<h2>Notes</h2>", "<ul>", items, "</ul>"]
    return page(f"{model.name}, quantized", body)


def page(title: str, body: Sequence[str]) -> str:
    """A page of these elements that needs no other file, in light and dark."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html(title)}</title>\n"
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _html_paragraphs(texts: Sequence[str]) -> list[str]:
    return [f"<p>{html(text)}</p>" for text in texts]


def _html_table(manifest: Manifest, best: FileEntry | None) -> str:
    columns = figures_of(manifest.files)
    original, files = texts_of(columns, manifest.model, manifest.files)
    rows = [("original", "the original", original)]
    for e, figures in zip(manifest.files, files, strict=True):
        rows.append(("best" if e is best else "", f"{e.recipe} ({e.format.upper()})", figures))
    head = "".join(f"<th>{html(column.heading)}</th>" for column in columns)
    body = "\n".join(
        f'<tr class="{kind}"><td>{html(name)}</td>'
        + "".join(f"<td>{html(figure)}</td>" for figure in figures)
        + "</tr>"
        for kind, name, figures in rows
    )
    return (
        f'<div class="wide"><table><thead><tr><th>file</th>{head}</tr></thead><tbody>'
        f"{body}</tbody></table></div>"
    )


def _allocation(entry: FileEntry) -> str:
    """A table of layers against roles, each cell coloured by its bits a weight; "" for a file that
    was built by a recipe."""
    if entry.allocation is None:
        return ""
    layers, others = by_layer(entry.allocation.types)
    roles = list(dict.fromkeys(role for row in layers.values() for role in row))
    head = "".join(f"<th>{layer}</th>" for layer in layers)
    rows = [
        f"<tr><td>{html(role)}</td>"
        + "".join(_cell(row.get(role, ""), f"layer {n}") for n, row in layers.items())
        + "</tr>"
        for role in roles
    ]
    rest = "; ".join(f"{html(name)} {html(kind)}" for name, kind in others.items())
    told = html(summary(entry, entry.allocation))
    line = html(entry.allocation.rebuild)
    again = f'<p class="soft">Built exactly again by <code>{line}</code></p>' if line else ""
    return (
        f'<h3>{html(entry.recipe)}</h3><p class="soft">{told}</p>'
        f'<div class="wide"><table class="types"><thead><tr><th>layer</th>{head}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="soft">{rest}</p>{again}'
    )


def _cell(kind: str, where: str) -> str:
    if not kind:
        return "<td></td>"
    title = f"{where}: {kind}, {bits_of(kind):.2g} bits"
    return f'<td style="--bits:{depth(kind):.2f}" title="{html(title)}">{html(kind)}</td>'


def render_card(manifest: Manifest) -> str:
    """README.md, a model card with YAML front matter. All of the manifest's text is escaped."""
    model, entries = manifest.model, manifest.files
    main, *apart = comparable_parts(manifest)
    lines = [*_front_matter(manifest), "", f"# {markdown(model.name)}, quantized", ""]
    about = f"{markdown(model.architecture)}, {model.parameters / 1e6:,.1f} M parameters."
    lines += [f"{about} Quantized and measured with Ingot.", ""]
    if (best := recommended(main.files)) is not None:
        choices = [f"- {markdown(text)}" for text in _choices(main)]
        lines += [f"**{markdown(sentence(main, best))}**", "", *choices, ""]
    if entries:
        lines += ["## Files", "", *_table(main), ""]
        lines += ["## Run", "", *_commands(best or entries[0]), ""]
    lines += ["## How it was measured", "", *_paragraphs(how_measured(main))]
    for part in apart:
        lines += ["## Measured otherwise", "", APART, "", *_table(part), ""]
        lines += _paragraphs(how_measured(part))
    if notes := _notes(manifest):
        items = [f"- {markdown(name)}: {markdown(text)}" for name, text in notes]
        lines += ["## Notes", "", *items, ""]
    if entries:
        sums = (pair for entry in entries for pair in entry.sha256.items())
        lines += ["## Checksums (sha256)", ""]
        lines += [
            f"    {sha}  {name}" for name, sha in sums if name.isprintable() and sha.isalnum()
        ]
        lines += ["", "`ingot doctor --checksums FOLDER` compares them.", ""]
    return "\n".join(lines)


def _paragraphs(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in (markdown(text), "")]


def _front_matter(manifest: Manifest) -> list[str]:
    """Strings in JSON's notation, which YAML shares."""
    lines = ["---"]
    source = next((e.source for e in manifest.files if _HUB_NAME.fullmatch(e.source.name)), None)
    if source is not None:
        lines += [f"base_model: {json.dumps(source.name)}", "base_model_relation: quantized"]
    formats = sorted({entry.format for entry in manifest.files})
    lines += ["pipeline_tag: text-generation", "tags:"]
    lines += [f"- {tag}" for tag in ("ingot", "quantized", *formats)]
    return [*lines, "---"]


def _table(manifest: Manifest) -> list[str]:
    columns = figures_of(manifest.files)
    rows = [["file", "recipe", *(column.heading for column in columns)]]
    rows.append(["---", "---", *("--:" for _ in columns)])
    original, files = texts_of(columns, manifest.model, manifest.files)
    names = [["the original", manifest.model.stored]]
    names += [[entry.path, entry.recipe] for entry in manifest.files]
    for name, figures in zip(names, (original, *files), strict=True):
        rows.append([markdown(text) for text in (*name, *figures)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _commands(entry: FileEntry) -> list[str]:
    """An indented block: in one, Markdown has no special characters."""
    path = entry.path if re.fullmatch(r"[\w./-]+", entry.path) else "FILE"
    return [
        "In the folder that holds the files:",
        "",
        f'    ingot run ./{path} "What is the capital of France?"',
        f"    ingot chat ./{path}",
        f"    ingot bench ./{path}",
    ]
