"""Hugging Face folder to a half-precision GGUF file whose tokens are the original's."""

from functools import partial
from pathlib import Path

from quantize.children.child import report_step
from quantize.children.process import run_child
from quantize.gguf.converter import converter_folder, load_converter
from quantize.progress.console import SILENT, Reporter
from quantize.quality.tokens import Reference, TokenComparison, compare_vocabulary
from runtimes.models.modelfile import read_json
from runtimes.models.registry import read_model

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
    window = config.get("sliding_window")
    kinds, context = config.get("layer_types"), config.get("max_position_embeddings")
    windowed = "sliding_attention" in kinds if isinstance(kinds, list) and kinds else True
    used = config.get("use_sliding_window", True) and windowed
    if not (isinstance(window, int) and isinstance(context, int) and used):
        return []
    if not 0 < window < context:
        return []
    if read_model(out).sliding_window:
        return []
    return [
        f"llama.cpp has no sliding window for this architecture: past {window:,} tokens the file"
        " attends to more than the original does, and continues texts in another way"
    ]
