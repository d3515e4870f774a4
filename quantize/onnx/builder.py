"""onnxruntime-genai's model builder, with amendments. Runs in a child process."""

import importlib.util
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from quantize.children.child import report_step
from quantize.options import Target
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel
from runtimes.errors import RuntimeMissingError
from runtimes.machine.cpu import allowed_cpus

_PIECE = 1 << 18  # weights: a dozen arrays of this size stay in a processor's cache


def build_graph(source: SourceModel, recipe: Recipe, out: Path, target: Target) -> list[str] | None:
    """Build ``source`` into the folder ``out``; what the user should know, or None when the builder
    does not know the architecture."""
    report_step("loading onnxruntime-genai's builder")
    builder = _load_builder()
    report_step("building the graph")
    cache = str(out.with_name("onnx-cache"))
    where = ("", str(source.folder), str(out), recipe.precision, target, cache)
    pairs = [f"{key}={value}" for key, value in recipe.options.items()]
    pairs += [f"hf_remote={str(source.trust_remote_code).lower()}"]
    extra = builder.parse_extra_options(*where, pairs)
    tied = bool(extra["shared_embeddings"])
    config = extra["hf_details"]["hf_config"]
    _flatten_rope(config)
    _name_windowed_layers(config)
    try:
        builder.create_model(*where, **extra)
    except NotImplementedError as error:
        if "is not currently supported" not in str(error):
            raise
        return None
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    from quantize.onnx.adapt import adapt

    report_step("storing the embedding and rewriting the graph")
    # CUDA's kernels take tables of 4 bits only.
    shrink = recipe.precision != "fp32" and target != "cuda"
    return adapt(out, shrink=shrink, tied=tied)


def builder_folder() -> Path:
    """Where the builder's sources are. Raises RuntimeMissingError when it is not installed."""
    spec = importlib.util.find_spec("onnxruntime_genai")
    if spec is None or spec.origin is None:
        raise RuntimeMissingError(
            "ONNX files are made with onnxruntime-genai, which is not installed; use --to gguf, or"
            " install it with: pip install 'ingot[cpu,quantize]'"
        )
    return Path(spec.origin).parent / "models"


def _load_builder() -> Any:
    """The builder's module, imported as its own command line does it."""
    sys.path.append(str(builder_folder()))
    import builder  # type: ignore[import-not-found]
    from builders.base import Model  # type: ignore[import-not-found]

    # The builder stamps the graph with the commit of whichever git checkout its environment lies
    # in: ours. The same model would give another checksum after every commit.
    Model.get_genai_commit = classmethod(lambda _cls: None)
    _recognise_lm_head_by_identity(Model)
    search_in_pieces(len(allowed_cpus()))
    return builder


def _recognise_lm_head_by_identity(model: Any) -> None:
    """The builder takes every linear layer with as many outputs as there are tokens for the output
    layer; a feed-forward layer of that size would be wired to the logits."""
    import torch

    original = model.has_lm_head

    def has_lm_head(self: Any, module: Any) -> bool:
        head = getattr(self.weights, "lm_head", None)
        return module is head if isinstance(head, torch.nn.Linear) else original(self, module)

    model.has_lm_head = has_lm_head


def _flatten_rope(config: Any) -> None:
    """Gemma 3's rotary parameters as transformers 4 had them: the builder wants the global layers'
    set in ``rope_parameters`` and the local ones' base beside it."""
    rope = getattr(config, "rope_parameters", None) or {}
    full, local = rope.get("full_attention"), rope.get("sliding_attention")
    if config.model_type in ("gemma3", "gemma3_text") and full and local:
        config.rope_local_base_freq = local["rope_theta"]
        config.rope_theta = full["rope_theta"]
        config.rope_parameters = dict(full)


def _name_windowed_layers(config: Any) -> None:
    """The builder goes by ``layer_types`` alone. Mistral and Phi-3 have none: all their layers have
    the window, and without this the graph would attend to everything."""
    window = getattr(config, "sliding_window", None)
    if (
        window
        and getattr(config, "use_sliding_window", True)
        and getattr(config, "layer_types", None) is None
    ):
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers


def search_in_pieces(threads: int) -> None:
    """Replace the function that onnxruntime's quantizer calls for each matrix: the same bytes in a
    fraction of the time and memory.

    Its own works on the whole matrix at once, with a dozen temporary arrays of the matrix's size in
    32 and 64 bits, on one core. Every group of weights is looked at by itself, so that pieces give
    the same result.
    """
    from onnxruntime.quantization.neural_compressor import weight_only

    whole = weight_only.quant_tensor_k_quant_cpu

    def search(data: Any, num_bits: int = 4, group_size: int = 32) -> list[Any]:
        def one(start: int) -> tuple[Any, Any, Any]:
            values, scales, zeros = whole(data[start : start + step], num_bits, group_size)
            return values.astype(np.uint8), scales, zeros  # whole numbers, returned as float64

        rows = data.shape[0]
        step = max(1, _PIECE // max(1, data.size // rows))
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(one, range(0, rows, step)))
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    # The name that is called; its own way to a GPU needs cupy, which nothing here installs.
    weight_only.quant_tensor_k_quant_cuda = search
