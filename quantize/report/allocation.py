"""The types of a file that was built for a target: layers against roles, in the report."""

import re
from collections.abc import Mapping

from quantize.manifest import Allocation, FileEntry, Manifest
from quantize.onnx.variants import parse_variant
from quantize.report.facts import megabytes
from runtimes.models.gguf import TENSOR_TYPES
from runtimes.output import html

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_BITS = {name.lower(): size * 8 / weights for name, weights, size in TENSOR_TYPES.values()}
_ROW = 1024  # weights that the scales of a variant are counted for
_FEWEST, _MOST = 2.0, 8.5  # bits between which colours differ


def render_allocation(entry: FileEntry) -> str:
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


def savings(manifest: Manifest) -> list[str]:
    """Predicted losses of files of the same sizes as the recipes', if every tensor's type is
    chosen; nothing where that was not measured."""
    said = []
    for entry in manifest.files:
        if entry.allocation or entry.fidelity is None:
            continue
        model = manifest.model
        mixes = model.mixes if entry.format == "gguf" else model.onnx_mixes
        smaller = [kl for size, kl in mixes if size <= entry.bytes]
        flag = "--max-size" if entry.format == "gguf" else "--to onnx --max-size"
        if smaller and min(smaller) < entry.fidelity.kl_mean:
            said.append(
                f"{entry.recipe} loses {entry.fidelity.kl_mean:.2g} nats; a file of its"
                f" {megabytes(entry.bytes)} MB whose types are chosen ({flag}) is predicted to"
                f" lose {min(smaller):.2g}"
            )
    return said


def summary(entry: FileEntry, allocation: Allocation) -> str:
    """Sentence with the file's predicted and measured loss, and the gain of a larger one."""
    parts = [f"predicted to lose {allocation.predicted:.2g} nats"]
    if entry.fidelity:
        found = entry.fidelity
        parts.append(f"measured {found.kl_mean:.2g} (error {found.kl_error:.1g})")
    if allocation.step_s:
        parts.append(f"{allocation.step_s * 1e3:.3g} ms a step of {allocation.rows} predicted")
    if allocation.next_mb is not None:
        parts.append(f"the next megabyte would bring it to {allocation.next_mb:.2g}")
    parts.append(f"{allocation.tries} file{'s' * (allocation.tries > 1)} tried")
    return ", ".join(parts)


def by_layer(types: Mapping[str, str]) -> tuple[dict[int, dict[str, str]], dict[str, str]]:
    """Types by layer and role, and those of other tensors by name."""
    layers: dict[int, dict[str, str]] = {}
    others = {}
    for name, kind in types.items():
        if found := _LAYER.fullmatch(name):
            layers.setdefault(int(found[1]), {})[found[2]] = kind
        else:
            others[name] = kind
    return {n: dict(sorted(layers[n].items())) for n in sorted(layers)}, others


def bits_of(kind: str) -> float:
    """That a weight takes in a type of GGUF, or by a variant of ONNX."""
    return _BITS[kind] if kind in _BITS else parse_variant(kind).bits_per_weight(_ROW)


def depth(kind: str) -> float:
    """How dark a type is drawn: 0 for the fewest bits a weight, 1 for the most."""
    return (min(max(bits_of(kind), _FEWEST), _MOST) - _FEWEST) / (_MOST - _FEWEST)


def _cell(kind: str, where: str) -> str:
    if not kind:
        return "<td></td>"
    title = f"{where}: {kind}, {bits_of(kind):.2g} bits"
    return f'<td style="--bits:{depth(kind):.2f}" title="{html(title)}">{html(kind)}</td>'
