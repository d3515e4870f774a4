"""ONNX folders by onnxruntime-genai's model builder, with amendments, and their sizes beforehand.
The builder runs in a child process.
"""

import importlib.util
import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quantize.children import report_step, run_child
from quantize.errors import UsageError
from quantize.onnx.optimum import build_with_optimum
from quantize.options import Target
from quantize.progress import Reporter
from quantize.recipes import W8A8, FileSize, Mix, Recipe, variants_of
from quantize.source import SourceModel
from quantize.source.shapes import Shapes, weights_in
from runtimes.errors import RuntimeMissingError
from runtimes.onnx.graph_file import WIDE

# Logits of the last position only (a prompt's other rows are never sampled from), and one cache
# length for all layers: a sliding window is then a matter of the attention mask alone.
_OPTIONS = ("prune_lm_head=true", "windowed_kv_cache=false")


def build_graph(
    source: SourceModel, recipe: Recipe, out: Path, target: Target, mix: Mix | None = None
) -> list[str] | None:
    """Build ``source`` into the folder ``out``; what the user should know, or None when the builder
    does not know the architecture. ``mix`` is instead of the recipe's ways to store matrices."""
    report_step("loading onnxruntime-genai's builder")
    builder = _load_builder()
    report_step("building the graph")
    cache = str(out.with_name("onnx-cache"))
    where = ("", str(source.folder), str(out), recipe.precision, target, cache)
    pairs = [*_OPTIONS, f"hf_remote={str(source.trust_remote_code).lower()}"]
    extra = builder.parse_extra_options(*where, pairs)
    notes: list[str] = []
    if recipe.options or mix:
        tied, extra["shared_embeddings"] = bool(extra["shared_embeddings"]), False
        _round_by(recipe, mix, target, notes, tied=tied)
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
    from quantize.onnx.graphfile import adapt

    report_step("rewriting the graph")
    adapt(out, mix.metadata if mix else {})
    return notes


def builder_folder() -> Path:
    """Folder of the builder's sources. Raises RuntimeMissingError when it is not installed."""
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
    return builder


def _round_by(
    recipe: Recipe, mix: Mix | None, target: Target, notes: list[str], *, tied: bool
) -> None:
    """Let ``recipe``, or ``mix``, say how matrices are stored, in the place of the builder's own
    rounding, which holds all of them in 32 bits; ``notes`` get what the user should know."""
    from builders.base import Model

    from quantize.onnx.graphfile import EMBEDDING
    from quantize.onnx.nbits import plan_matrices, quantize_graph

    def to_nbits(model: Any) -> Any:
        graph = model.model.graph
        plan, inputs = plan_matrices(graph, recipe.options, mix)
        left = list(model.quant_attrs["nodes_to_exclude"])
        if target == "cuda" and not tied:
            left.append(EMBEDDING)  # the builder shares a table in 8 bits there, and makes none
        for name in left:
            plan.pop(name, None)
        notes.extend(quantize_graph(graph, plan, inputs, tied=tied))
        return model.model

    Model.to_nbits = to_nbits


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


# Hugging Face folder to an ONNX folder that our runner and onnxruntime-genai load.


@dataclass(frozen=True, slots=True)
class OnnxBuild:
    """A built folder: the tool that wrote its graph, and what the user should know.

    ``runs_here`` is False for a file that this machine cannot load, so that it is not measured.
    """

    route: str
    notes: list[str]
    runs_here: bool = True


def build_onnx(
    source: SourceModel,
    recipe: Recipe,
    work: Path,
    target: Target,
    progress: Reporter,
    calibration: Path | None,
    exports: Path,
    mix: Mix | None,
) -> OnnxBuild:
    """Build ``source`` by ``recipe`` in the folder ``work``, for the processor ``target``.

    onnxruntime-genai's builder writes the graph; optimum's exporter does where the builder does not
    know the architecture. ``calibration`` is a text to smooth activations by, for recipes that
    round them. ``exports`` is a folder where optimum's float export is kept for the next recipe.
    ``mix`` says how each matrix is stored where the recipe does not, and what its columns weigh.
    Raises UsageError where the recipe does not fit the target, and what `run_child` and
    `optimum_overlay` raise.
    """

    def build(recipe: Recipe, out: Path) -> OnnxBuild:
        what, notes = f"building {recipe.name}", None
        own = None if recipe.precision == "fp32" else mix
        shutil.rmtree(out, ignore_errors=True)
        if builder_may_know(source.architecture):
            call = partial(build_graph, source, recipe, out, target, own)
            notes = run_child(call, what, work, progress, torch=True)
        if notes is None:
            if recipe.for_gpus:
                raise UsageError(
                    f"{recipe.name} cannot be made of {source.architecture}: optimum exports floats"
                    " of 32 bits only"
                )
            shutil.rmtree(out, ignore_errors=True)
            notes = build_with_optimum(source, recipe, out, progress, exports, own)
            if target != "cpu":
                notes.append(
                    f"the graph is in 32 bits: optimum's export is not shaped for {target}"
                )
            return OnnxBuild("optimum", notes)
        # The builder packs the experts of a mixture for CUDA's kernels, which nothing else can
        # read.
        packed = target != "cpu" and b"QMoE" in (out / "model.onnx").read_bytes()
        if target != "cpu":
            more = ": not loaded or measured here" if packed else ""
            notes.append(f"built for {target}, with half-precision activations{more}")
        return OnnxBuild("onnxruntime-genai", notes, runs_here=not packed)

    out, narrow = work / recipe.name, list[str]()
    if not recipe.rounds_activations:
        return build(recipe, out)
    if target != "cpu":
        raise UsageError(f"{recipe.name} is for processors; take another recipe for {target}")
    plain, _, _ = recipe.precision.partition("+")
    shutil.rmtree(out, ignore_errors=True)
    if twin := plain != W8A8:  # with a graph of the other kind for narrow passes
        made = build(replace(recipe, precision=plain), out)
        if made.route == "optimum":
            raise UsageError(
                f"{recipe.name} cannot be made of {source.architecture}: graphs of optimum's"
                " exporter share no keys and values; take onnx-int4 or onnx-w8a8"
            )
        narrow = made.notes
    # The float graph, then its matrix products with 8-bit weights and activations.
    whole = work / f"{recipe.name}-fp32"
    made = build(replace(recipe, precision="fp32", options={}), whole)
    call = partial(_rewrite_w8a8, whole, out, calibration, beside=twin)
    notes = run_child(call, f"building {recipe.name}", work, progress)
    shutil.rmtree(whole)
    return replace(made, notes=[*narrow, *made.notes, *notes])


def builder_may_know(architecture: str) -> bool:
    """Whether the builder's source, a chain of comparisons with names, has this one: loading it to
    hear that it does not takes seconds."""
    try:
        chain = builder_folder() / "builder.py"
    except RuntimeMissingError:
        return False
    return f'"{architecture}"' in chain.read_text(encoding="utf-8")


def _rewrite_w8a8(fp32: Path, out: Path, calibration: Path | None, *, beside: bool) -> list[str]:
    """Runs in a child process; ``beside`` the graph that is in ``out`` already."""
    from quantize.onnx.graphfile import NAME
    from quantize.onnx.w8a8 import quantize_w8a8

    return quantize_w8a8(fp32, out, calibration, WIDE if beside else NAME)


_ROPE = "rope_parameters"
_FLOAT = 32.0
_LEAST_BLOCK = 32
_GRAPH = 9000  # bytes of the graph for each layer, about
_WITH_TOKENIZER = "tokenizer.json tokenizer_config.json tokenizer.model vocab.json".split()
_CAREFUL = "token_embd output attn_v attn_qkv ffn_down".split()
_WITH_VALUES = ("attn_q", "attn_k")


def onnx_size(source: SourceModel, shapes: Shapes, recipe: Recipe) -> FileSize | None:
    """Size of ``recipe``'s folder; None for an architecture that the builder does not know."""
    if source.kind != "hf" or not builder_may_know(source.architecture):
        return None
    bits = sum(
        math.prod(shape) * _bits(name, shape, shapes, recipe)
        for name, shape in shapes.weights.items()
    )
    whole = int(bits / 8) + beside_weights(source, shapes)
    return FileSize(whole, bits / weights_in(shapes.weights))


def beside_weights(source: SourceModel, shapes: Shapes) -> int:
    """Bytes of a folder for the graph, the tables of positions, and the tokenizer, about."""
    files = (source.folder / name for name in _WITH_TOKENIZER)
    tokenizer = sum(file.stat().st_size for file in files if file.is_file())
    return _positions(shapes) + _GRAPH * shapes.layers + tokenizer


def one_product_for_qkv(shapes: Shapes) -> bool:
    """Whether the builder makes queries, keys and values by one product: unless norms follow."""
    return "blk.0.attn_q_norm.weight" not in shapes.weights


def table_is_float(shapes: Shapes) -> bool:
    """Whether an embedding table of its own is kept: no block divides its rows."""
    width = shapes.weights["token_embd.weight"][0]
    return width % _LEAST_BLOCK != 0 and "output.weight" in shapes.weights


def _bits(name: str, shape: tuple[int, ...], shapes: Shapes, recipe: Recipe) -> float:
    """Bits that a weight of that tensor takes."""
    if recipe.for_gpus:
        return _FLOAT / 2
    if len(shape) < 2 or recipe.precision == "fp32":
        return _FLOAT
    rounded = 8 + _FLOAT / shape[0]  # with a scale for each output channel
    if recipe.precision == W8A8:
        return rounded
    role = name.split(".")[-2]
    beside = rounded if recipe.rounds_activations else 0
    if role == "token_embd" and table_is_float(shapes):
        return _FLOAT + beside
    usual, careful = variants_of(recipe.options)
    picked = role in _CAREFUL or (role in _WITH_VALUES and one_product_for_qkv(shapes))
    variant = careful if picked else usual
    return variant.fitting(shape[0]).bits_per_weight(shape[0]) + beside


def _positions(shapes: Shapes) -> int:
    """The tables of sines and cosines; models with two bases have two pairs."""
    heads = shapes.number("num_attention_heads", default=1)
    size = int(shapes.number("head_dim", default=shapes.number("hidden_size") // heads))
    share, rope = shapes.number("partial_rotary_factor", default=1), shapes.config.get(_ROPE)
    local = isinstance(rope, Mapping) and "sliding_attention" in rope
    pairs = 2 if local or shapes.config.get("rope_local_base_freq") else 1
    return pairs * 4 * int(size * share) * int(shapes.number("max_position_embeddings"))
