"""A checkpoint's weights by llama.cpp's names, from the headers of its files: what decides how many
bits a built file has for each of them."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quantize.disk import sha256_of
from quantize.manifest import ModelOrigin
from quantize.source.files import CONFIG, EVALUATION, GRADED, read_json, read_tensors, small_files

# What later steps know of the model that they build from.


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model whose configuration, weights and tokenizer are all there.

    One that is a GGUF file has no configuration and no Hugging Face tokenizer.
    """

    folder: Path
    architecture: str
    weights: tuple[Path, ...]
    parameters: int  # the number of weights
    name: str  # what built files are named after
    beside: Path  # the folder that outputs go into by default
    # A Hugging Face folder, or one GGUF file of floating point weights.
    kind: Literal["hf", "gguf"] = "hf"
    revision: str | None = None  # the commit of a model from the hub
    trust_remote_code: bool = False
    bytes: int = 0  # of the weights on disk
    lora: str | None = None  # the adapter that has been merged
    quantized: str = ""  # of a GGUF file that is quantized already: its types

    @property
    def graded(self) -> Path | None:
        """Graded questions that came with the model, if any."""
        path = self.folder / GRADED
        return path if path.is_file() else None

    @property
    def evaluation(self) -> Path | None:
        """The text that came with the model to measure its builds on, if any."""
        path = self.folder / EVALUATION
        return path if self.kind == "hf" and path.is_file() else None

    @property
    def default_out(self) -> Path:
        """Folder of built files unless the user names one: beside the model's folder, or, for a
        model that was downloaded, in the current folder."""
        return self.beside / f"{self.name}-built"

    def load(self, kind: Any, **settings: Any) -> Any:
        """Object of the class ``kind`` of transformers, made from the folder alone."""
        code = self.trust_remote_code
        return kind.from_pretrained(
            self.folder, local_files_only=True, trust_remote_code=code, **settings
        )

    def tokenizer(self) -> Any:
        """The original tokenizer. Imports transformers."""
        from transformers import AutoTokenizer

        return self.load(AutoTokenizer)

    def fingerprint(self) -> ModelOrigin:
        """Name and hash: two sources with the same hash give the same files.

        The hash is over the names and contents of the configuration, the tokenizer's files and the
        weights. It reads all of them.
        """
        digest = hashlib.sha256()
        small = small_files(self.folder) if self.kind == "hf" else ()
        for path in (*small, *self.weights):
            # The file that is converted is named by the user: its name decides nothing.
            digest.update(f"{path.name if self.kind == 'hf' else ''}\0".encode())
            digest.update(bytes.fromhex(sha256_of(path)))
        return ModelOrigin(self.name, digest.hexdigest(), revision=self.revision, lora=self.lora)


_MOST = 2**31
_BLOCK = re.compile(r"blk\.([0-9]{1,6})\.")
_LAYER = re.compile(r"\.(?:layers|h|blocks?)\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.(?:\d+\.)?")
# What a weight does, by the last words of its name; the first that fits counts. GPT-2's family
# says c_proj for two of them.
_ROLES = tuple(
    (re.compile(pattern), role)
    for pattern, role in (
        (r"(?:embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)$", "token_embd"),
        (r"(?:^|\.)(?:lm_head|embed_out|output)$", "output"),
        (r"(?:qkv_proj|c_attn|query_key_value|Wqkv|att_proj)$", "attn_qkv"),
        (r"(?:q_proj|wq)$", "attn_q"),
        (r"(?:k_proj|wk)$", "attn_k"),
        (r"(?:v_proj|wv)$", "attn_v"),
        (r"(?:att\w*\.(?:o_proj|out_proj|c_proj|dense|wo)|self_attn\.\w*out\w*)$", "attn_output"),
        (r"(?:gate_up_proj|up_proj|fc1|c_fc|dense_h_to_4h|w3)$", "ffn_up"),
        (r"(?:gate_proj|w1)$", "ffn_gate"),
        (r"(?:down_proj|fc2|c_proj|dense_4h_to_h|w2)$", "ffn_down"),
        (r"(?:\.gate|router)$", "ffn_gate_inp"),
    )
)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Each weight's shape with the length of a row first, as GGUF has it, and the configuration of
    the language model, which may be nested in a larger one."""

    weights: Mapping[str, tuple[int, ...]]
    config: Mapping[str, Any]

    @property
    def layers(self) -> int:
        """The number of blocks."""
        found = (int(match[1]) for name in self.weights if (match := _BLOCK.match(name)))
        return max(found, default=-1) + 1

    def number(self, *names: str, default: float = 0) -> float:
        """The first of these settings that is a number above 0; anybody may have written them."""
        values = (self.config.get(name) for name in names)
        return next((v for v in values if isinstance(v, int | float) and 0 < v < _MOST), default)


def shapes_of(source: SourceModel) -> Shapes:
    """Shapes of a Hugging Face folder. Raises SourceError for files that cannot be read."""
    config = read_json(source.folder / CONFIG, "it is not a Hugging Face model folder")
    inner = config.get("text_config")
    config = {**config, **(inner if isinstance(inner, Mapping) else {})}
    tied = bool(config.get("tie_word_embeddings", False))
    weights: dict[str, tuple[int, ...]] = {}
    experts: dict[str, int] = {}
    for path in source.weights:
        for name, tensor in read_tensors(path).items():
            known = gguf_name(name)
            if known == "output.weight" and tied:
                continue
            shape = tuple(reversed(tensor.shape))
            if re.search(r"c_(?:attn|proj|fc)\.weight$", name) and len(shape) == 2:
                shape = (shape[1], shape[0])  # GPT-2 keeps its matrices the other way round
            if _EXPERT.search(name) and len(shape) == 2:
                experts[known] = experts.get(known, 0) + 1
                shape = (*shape, experts[known])  # one tensor for all of them
            weights[known] = shape
    return Shapes(weights, config)


def gguf_name(name: str) -> str:
    """Name such as "blk.3.ffn_down.weight"; what is not known keeps its last word."""
    stem, _, kind = name.rpartition(".")
    layer = _LAYER.search(f".{stem}.")
    role = next((role for found, role in _ROLES if found.search(stem)), stem.rpartition(".")[2])
    if _EXPERT.search(f"{name}."):
        role += "_exps"
    return f"blk.{layer[1]}.{role}.{kind}" if layer else f"{role}.{kind}"


def vocabulary_bytes(source: SourceModel, tokens: int) -> int:
    """Bytes that a GGUF file takes for its ``tokens`` entries, about: their texts, types and
    scores, the merges, and the chat template."""
    path = source.folder / "tokenizer.json"
    try:
        model = json.loads(path.read_bytes())["model"]
    except (OSError, ValueError, KeyError, TypeError):
        return tokens * 24
    vocabulary = model.get("vocab") or ()
    ranked = isinstance(vocabulary, dict)  # else each token has a score
    texts = [text if ranked else text[0] for text in vocabulary]
    entries = sum(len(text.encode()) for text in texts) + 8 * len(texts)
    filled = max(0, tokens - len(texts)) * 20
    merges = (m if isinstance(m, str) else " ".join(m) for m in model.get("merges") or ())
    merged = sum(8 + len(merge.encode()) for merge in merges)
    template = source.folder / "chat_template.jinja"
    told = template.stat().st_size if template.is_file() else 0
    return entries + filled + merged + (4 if ranked else 8) * tokens + told


def weights_in(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many there are."""
    return sum(math.prod(shape) for shape in shapes.values())
