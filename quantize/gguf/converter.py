"""llama.cpp's converter, and the half-precision export that it makes.

It is the converter of exactly the llama.cpp that the installed llama-cpp-python was built from,
with amendments. The wheel leaves it out and the registry's `gguf` package lags behind it, so both
parts are taken from that version's source distribution.
"""

import importlib.metadata
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from quantize.children import report_step, run_child
from quantize.errors import ToolError
from quantize.progress import SILENT, Reporter
from quantize.quality.tokens import Reference, TokenComparison, compare_vocabulary
from quantize.source.files import read_tensors
from runtimes.errors import IngotError, RuntimeMissingError
from runtimes.llamacpp.source import sdist_path, sdist_sha256
from runtimes.models.modelfile import read_json
from runtimes.models.registry import read_model
from runtimes.paths import cache_dir

_SCRIPT = "convert_hf_to_gguf.py"
LORA_SCRIPT = "convert_lora_to_gguf.py"
_PARTS = (_SCRIPT, LORA_SCRIPT, "conversion", "gguf-py")


def converter_folder() -> Path:
    """The folder with the converter, unpacked once into Ingot's cache.

    Raises RuntimeMissingError without llama-cpp-python, ToolError when its source is unusable.
    """
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError as error:
        raise RuntimeMissingError(
            "GGUF files are made with llama-cpp-python, which is not installed; use --to onnx, or"
            " install it with: make native"
        ) from error
    archive = sdist_path(version)
    target = cache_dir() / "converter" / f"{version}-{sdist_sha256(archive)[:16]}-{len(_PARTS)}"
    if not (target / _SCRIPT).is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        _unpack(archive, target)
    return target


def _unpack(archive: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as scratch:
        try:
            with tarfile.open(archive) as tar:
                members = [m for m in tar if _is_wanted(m.name)]
                tar.extractall(scratch, members=members, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise ToolError(f"{archive} is damaged ({error}); delete it and retry") from error
        found = next(Path(scratch).glob(f"*/vendor/llama.cpp/{_SCRIPT}"), None)
        if found is None:
            raise ToolError(f"{archive} does not contain llama.cpp's {_SCRIPT}")
        try:
            found.parent.rename(target)
        except OSError as error:
            if not (target / _SCRIPT).is_file():  # else another run was faster
                raise IngotError(f"cannot write {target}: {error.strerror}") from error


def _is_wanted(name: str) -> bool:
    parts = Path(name).parts
    return len(parts) > 3 and parts[1:3] == ("vendor", "llama.cpp") and parts[3] in _PARTS


def load_converter(converter: Path) -> Callable[..., None]:
    """The command line of the converter in that folder as a function ``(model, out, *arguments)``;
    ``pre`` forces the name of the pre-tokenizer. To be called once in a child process."""
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    import convert_hf_to_gguf  # type: ignore[import-not-found]
    import gguf
    from conversion.base import ModelBase, TextModel  # type: ignore[import-not-found]
    from conversion.gptneox import GPTNeoXModel  # type: ignore[import-not-found]
    from conversion.granite import GraniteHybridModel  # type: ignore[import-not-found]

    _amend_byte_fallback(gguf)
    _amend_settings(ModelBase)
    _amend_rope_base(GPTNeoXModel)
    _amend_layer_names(GraniteHybridModel)
    recognised = TextModel.get_vocab_base_pre

    def run(model: Path, out: Path, *arguments: str, pre: str | None = None) -> None:
        TextModel.get_vocab_base_pre = recognised if pre is None else lambda *_: pre
        command = (_SCRIPT, str(model), "--outfile", str(out), *arguments)
        sys.argv = [*command, *_without_draft(model)]
        convert_hf_to_gguf.main()

    return run


def _without_draft(model: Path) -> list[str]:
    """The converter asserts that a Qwen3-Next has its draft layers; transformers saves none."""
    config = json.loads((model / "config.json").read_bytes())
    if config.get("model_type") != "qwen3_next":
        return []
    names = (name for path in model.glob("*.safetensors") for name in read_tensors(path))
    return [] if any(name.startswith(("mtp.", "model.mtp.")) for name in names) else ["--no-mtp"]


def _amend_settings(base: Any) -> None:
    """Give the converter what it looks for in config.json, and transformers 5 writes differently or
    leaves to the architecture's class."""
    load = base.load_hparams

    def load_hparams(*arguments: Any, **named: Any) -> dict[str, Any]:
        found: dict[str, Any] = load(*arguments, **named)
        kind, rope = found.get("model_type"), found.get("rope_parameters") or {}
        older = {
            "n_ctx": found.get("n_positions"),
            "rotary_pct": rope.get("partial_rotary_factor", 1.0 if kind == "cohere2" else None),
            "scoring_func": "sigmoid" if kind == "deepseek_v3" else None,
        }
        return {name: value for name, value in older.items() if value is not None} | found

    base.load_hparams = staticmethod(load_hparams)


def _amend_rope_base(gpt_neox: Any) -> None:
    """The converter leaves out the base of the rotary embedding; llama.cpp then takes 10,000."""
    original = gpt_neox.set_gguf_parameters

    def set_gguf_parameters(self: Any) -> None:
        original(self)
        rope = self.hparams.get("rope_parameters") or {}
        theta = rope.get("rope_theta", self.hparams.get("rotary_emb_base"))
        if theta is not None:
            self.gguf_writer.add_rope_freq_base(theta)

    gpt_neox.set_gguf_parameters = set_gguf_parameters


def _amend_layer_names(granite: Any) -> None:
    """Transformers 5 writes "full_attention" where Granite's hybrids said "attention"."""
    original = granite.get_attn_layers

    def get_attn_layers(self: Any) -> list[int]:
        kinds = self.hparams.get("layer_types") or []
        found = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        return found or list(original(self))

    granite.get_attn_layers = get_attn_layers


def _amend_byte_fallback(gguf: Any) -> None:
    """Two amendments for a byte-fallback BPE with a tokenizer.json and no tokenizer.model.

    The converter scores all its tokens -1000, and llama.cpp, which merges the pair with the best
    score first, then merges in another order than the original tokenizer: each token's score
    becomes the rank of its merge. And it takes added tokens that lie within the vocabulary for
    plain text: they become control tokens, or user-defined ones when they are not special.
    """

    class RankedVocab(gguf.LlamaHfVocab):  # type: ignore[misc]
        def __init__(self, base_path: Path) -> None:
            super().__init__(base_path)
            state = json.loads(self.fname_tokenizer.read_bytes())
            self.merge_rank: dict[int, int] = {}
            for rank, merge in enumerate(state["model"].get("merges", [])):
                # Older files write a merge as one string, newer ones as a pair.
                merged = merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)
                self.merge_rank.setdefault(self.tokenizer.convert_tokens_to_ids(merged), rank)

        def get_token_score(self, token_id: int) -> float:
            return -float(self.merge_rank.get(token_id, 1000))

        def get_token_type(self, token_id: int, text: bytes, special_ids: set[int]) -> Any:
            added = self.tokenizer.added_tokens_decoder.get(token_id)
            if added is None or token_id in special_ids:
                return super().get_token_type(token_id, text, special_ids)
            return gguf.TokenType.CONTROL if added.special else gguf.TokenType.USER_DEFINED

    gguf.LlamaHfVocab = RankedVocab


# Pre-tokenizers to try for a byte-level vocabulary whose hash the converter does not know; between
# them they cover the regular expressions in use (GPT-2's, Llama 3's, Qwen 2's; `default` splits
# punctuation and single digits).
_CANDIDATES = ("gpt-2", "llama-bpe", "qwen2", "default")


def export_f16(
    model: Path, out: Path, reference: Reference, work: Path, progress: Reporter = SILENT
) -> list[str]:
    """Write ``model`` to the GGUF file ``out``; returns what the user should know."""
    call = partial(_convert, converter_folder(), model, out, reference, work)
    note = run_child(call, "converting to GGUF", work, progress, torch=True)
    return [*([note] if note else []), *_lost_window(model, out)]


def _convert(
    converter: Path, model: Path, out: Path, reference: Reference, work: Path
) -> str | None:
    """Runs in a child process: what the user should know. Where the converter does not know the
    hash of the vocabulary, the candidate whose tokens are nearest to the original's is taken."""
    report_step("loading the converter")
    run = load_converter(converter)
    try:
        report_step("converting")
        run(model, out, "--outtype", "f16")
    except NotImplementedError as error:
        if "pre-tokenizer" not in str(error):
            raise
    else:
        return None
    tried: dict[str, TokenComparison] = {}
    for name in _CANDIDATES:
        report_step(f"trying the pre-tokenizer {name}")
        path = work / f"vocabulary-{name}.gguf"
        run(model, path, "--vocab-only", pre=name)
        tried[name] = compare_vocabulary(path, reference, work)
        path.unlink()
        if not tried[name].differences:
            break
    best = min(tried, key=lambda name: len(tried[name].differences))
    report_step("converting")
    run(model, out, "--outtype", "f16", pre=best)
    found = tried[best].parity
    return (
        f"pre-tokenizer {best!r} chosen by comparing tokens: {found.differences} of {found.lines}"
        " lines differ"
    )


def _lost_window(model: Path, out: Path) -> list[str]:
    """A note where the original attends to a window only, and llama.cpp to everything (Mistral)."""
    config = read_json(model / "config.json")
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    context = config.get("max_position_embeddings")
    windowed = "sliding_attention" in kinds if isinstance(kinds, list) and kinds else True
    used = config.get("use_sliding_window", True) and windowed
    if not (isinstance(window, int) and isinstance(context, int) and used):
        return []
    if not 0 < window < context or read_model(out).sliding_window:
        return []
    return [
        f"llama.cpp has no sliding window for this architecture: past {window:,} tokens the file"
        " attends to more than the original does, and continues texts in another way"
    ]
