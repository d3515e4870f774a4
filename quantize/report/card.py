"""README.md beside the files: the model card that a hub shows, with YAML front matter."""

import json
import re

from quantize.manifest import FileEntry, Manifest
from quantize.report.facts import (
    alternatives,
    comparable_parts,
    outdone,
    recommended,
    sentence,
    title,
)
from quantize.report.figures import APART, figures_of, how_measured

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Characters with a meaning to Markdown, HTML or TeX, and those that make bare addresses links.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&@]|:(?=//)|(?<=www)\.)", re.IGNORECASE)


def render(manifest: Manifest) -> str:
    """The card as text. Everything that comes from the manifest is escaped."""
    model, entries = manifest.model, manifest.files
    main, *apart = comparable_parts(manifest)
    best = recommended(main.files)
    lines = [*_front_matter(manifest), "", f"# {_plain(model.name)}, quantized", ""]
    about = f"{_plain(model.architecture)}, {model.parameters / 1e6:,.1f} M parameters."
    lines += [f"{about} Quantized and measured with Ingot.", ""]
    if best is not None:
        lines += [f"**{_plain(sentence(main, best))}**", ""]
        lines += [f"- {label}: {_plain(title(e))}" for label, e in alternatives(main)]
        lines += [f"- {_plain(text)}" for text in outdone(main)]
        lines.append("")
    if entries:
        lines += ["## Files", "", *_table(main), ""]
        lines += ["## Run", "", *_commands(best or entries[0]), ""]
    lines += ["## How it was measured", ""]
    for text in how_measured(main):
        lines += [_plain(text), ""]
    for part in apart:
        lines += ["## Measured otherwise", "", APART, "", *_table(part), ""]
        for text in how_measured(part):
            lines += [_plain(text), ""]
    if any(entry.notes for entry in entries):
        lines += ["## Notes", ""]
        lines += [
            f"- {_plain(entry.recipe)}: {_plain('; '.join(entry.notes))}"
            for entry in entries
            if entry.notes
        ]
        lines.append("")
    if entries:
        lines += ["## Checksums (sha256)", ""]
        lines += [
            f"    {digest}  {name}"
            for entry in entries
            for name, digest in entry.sha256.items()
            if name.isprintable() and digest.isalnum()
        ]
        lines += ["", "`ingot doctor --verify FOLDER` compares them.", ""]
    return "\n".join(lines)


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
    original = [column.original(manifest.model) or "-" for column in columns]
    rows.append(["the original", "float", *map(_plain, original)])
    for entry in manifest.files:
        figures = [_plain(column.of(entry) or "-") for column in columns]
        rows.append([_plain(entry.path), _plain(entry.recipe), *figures])
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


def _plain(text: str) -> str:
    """Text that Markdown and HTML show as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
