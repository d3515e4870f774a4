"""llama.cpp's convert_hf_to_gguf.py, with amendments. Loaded in a child process."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantize.source.tensors import read_tensors


def load_converter(converter: Path, pre: str | None = None) -> Callable[..., None]:
    """The command line of the converter in that folder as a function; ``pre`` forces the name of
    the pre-tokenizer."""
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    import convert_hf_to_gguf  # type: ignore[import-not-found]
    import gguf
    from conversion.base import ModelBase, TextModel  # type: ignore[import-not-found]
    from conversion.gptneox import GPTNeoXModel  # type: ignore[import-not-found]
    from conversion.granite import GraniteHybridModel  # type: ignore[import-not-found]

    if pre is not None:
        TextModel.get_vocab_base_pre = lambda _self, _tokenizer: pre
    _amend_byte_fallback(gguf.LlamaHfVocab)
    _amend_settings(ModelBase, GPTNeoXModel)
    _amend_layer_names(GraniteHybridModel)

    def run(model: Path, out: Path, *arguments: str) -> None:
        command = ("convert_hf_to_gguf.py", str(model), "--outfile", str(out), *arguments)
        sys.argv = [*command, *_without_draft(model)]
        convert_hf_to_gguf.main()

    return run


def _without_draft(model: Path) -> list[str]:
    """The converter asserts that a Qwen3-Next has its draft layers; transformers saves none."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "qwen3_next":
        return []
    names = (name for path in model.glob("*.safetensors") for name in read_tensors(path))
    return [] if any(name.startswith(("mtp.", "model.mtp.")) for name in names) else ["--no-mtp"]


def _amend_settings(base: Any, gpt_neox: Any) -> None:
    """Settings as transformers 4 named them, where the converter knows no other name.

    For GPT-NeoX it also leaves out the base of the rotary embedding; llama.cpp then takes 10,000.
    """
    if hasattr(base, "older_names"):  # done already
        return
    base.older_names = True
    load, parameters = base.load_hparams, gpt_neox.set_gguf_parameters

    def load_hparams(*arguments: Any, **named: Any) -> dict[str, Any]:
        found: dict[str, Any] = load(*arguments, **named)
        _add_older_names(found)
        return found

    def set_gguf_parameters(self: Any) -> None:
        parameters(self)
        rope = self.hparams.get("rope_parameters") or {}
        theta = rope.get("rope_theta", self.hparams.get("rotary_emb_base"))
        if theta is not None:
            self.gguf_writer.add_rope_freq_base(theta)

    base.load_hparams = staticmethod(load_hparams)
    gpt_neox.set_gguf_parameters = set_gguf_parameters


def _amend_layer_names(granite: Any) -> None:
    """Transformers 5 writes "full_attention" where Granite's hybrids said "attention"."""
    if hasattr(granite, "older_layer_names"):  # done already
        return
    granite.older_layer_names = True
    original = granite.get_attn_layers

    def get_attn_layers(self: Any) -> list[int]:
        kinds = self.hparams.get("layer_types") or []
        found = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        return found or list(original(self))

    granite.get_attn_layers = get_attn_layers


def _add_older_names(found: dict[str, Any]) -> None:
    """What the converter looks for in config.json, and transformers 5 writes in another way or
    leaves to the architecture's class."""
    if "n_positions" in found:
        found.setdefault("n_ctx", found["n_positions"])
    rope = found.get("rope_parameters") or {}
    if "partial_rotary_factor" in rope:
        found.setdefault("rotary_pct", rope["partial_rotary_factor"])
    kind = found.get("model_type")
    if kind == "cohere2":
        found.setdefault("rotary_pct", 1.0)
    if kind == "deepseek_v3":
        found.setdefault("scoring_func", "sigmoid")


def _amend_byte_fallback(vocab: Any) -> None:
    """Two amendments for a byte-fallback BPE with a tokenizer.json and no tokenizer.model.

    The converter scores all its tokens -1000, and llama.cpp, which merges the pair with the best
    score first, then merges in another order than the original tokenizer: each token's score
    becomes the rank of its merge. And it takes added tokens that lie within the vocabulary for
    plain text: they become control tokens, or user-defined ones when they are not special.
    """
    if hasattr(vocab, "merge_rank"):  # done already
        return
    vocab.merge_rank = {}
    original_init, original_type = vocab.__init__, vocab.get_token_type

    def init(self: Any, base_path: Path) -> None:
        original_init(self, base_path)
        state = json.loads(self.fname_tokenizer.read_text(encoding="utf-8"))
        self.merge_rank = {}
        for rank, merge in enumerate(state["model"].get("merges", [])):
            # Older files write a merge as one string, newer ones as a pair.
            merged = merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)
            self.merge_rank.setdefault(self.tokenizer.convert_tokens_to_ids(merged), rank)

    def score(self: Any, token_id: int) -> float:
        rank = self.merge_rank.get(token_id)
        return -1000.0 if rank is None else -float(rank)

    def kind(self: Any, token_id: int, text: bytes, special_ids: set[int]) -> Any:
        added = self.tokenizer.added_tokens_decoder.get(token_id)
        if added is None or token_id in special_ids:
            return original_type(self, token_id, text, special_ids)
        return original_type(self, token_id, b"", {token_id}) if added.special else _user_defined()

    vocab.__init__, vocab.get_token_score, vocab.get_token_type = init, score, kind


def _user_defined() -> Any:
    import gguf

    return gguf.TokenType.USER_DEFINED
