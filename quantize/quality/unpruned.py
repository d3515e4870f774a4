"""Runs in a child process: an ONNX folder whose graph gives logits after every position.

Graphs are built with the output layer at the last position only, twice as fast over a prompt. To
score a text all positions are wanted. The folder made here has a graph of a few hundred kilobytes
without that step, over the very weights of the original: its other files are hard links.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from runtimes.modelfile import GENAI_CONFIG, read_json

# How onnxruntime-genai's model builder names the two nodes (models/builders/base.py, make_lm_head):
# a Gather of position -1, and an Unsqueeze that gives the axis back.
_PRUNING = ("/lm_head/prune/Gather", "/lm_head/prune/Unsqueeze")


def make_unpruned(folder: Path, out: Path) -> Path | None:
    """Write the folder ``out`` for the ONNX folder ``folder``; None where nothing is pruned.

    ``out`` should be on the same disk: where links cannot be made, files are copied.
    """
    import onnx

    names = read_json(folder / GENAI_CONFIG)["model"]["decoder"]
    model = onnx.load(folder / names["filename"], load_external_data=False)
    if not _remove_pruning(model.graph, names["outputs"]["logits"]):
        return None
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in folder.iterdir():
        if path.is_file() and path.name != names["filename"]:
            _link(path, out / path.name)
    # As protobuf, not through onnx.save, which would look for the weights.
    (out / names["filename"]).write_bytes(model.SerializeToString())
    return out


def _remove_pruning(graph: Any, logits: str) -> bool:
    """Take the pruning nodes out of ``graph``; False when it has none."""
    found = {node.name: node for node in graph.node if node.name in _PRUNING}
    if len(found) != len(_PRUNING):
        return False
    gather, unsqueeze = (found[name] for name in _PRUNING)
    whole, last = gather.input[0], unsqueeze.output[0]
    for node in graph.node:
        for at, name in enumerate(node.input):
            if name == last:
                node.input[at] = whole
    graph.node.remove(gather)
    graph.node.remove(unsqueeze)
    # Recorded shapes of values behind the nodes say one position; the runtime infers them anew.
    del graph.value_info[:]
    for output in graph.output:
        if output.name == logits:
            output.type.tensor_type.shape.dim[1].Clear()
            output.type.tensor_type.shape.dim[1].dim_param = "sequence_length"
    return True


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
