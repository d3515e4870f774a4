"""Runs in a child process: the original model, computing in single precision; one that is a GGUF
file is its own, on its runtime.

Where the weights fit into memory in single precision they are held so. Where they do not, they stay
in the precision of the checkpoint (16 bits, mapped from the files as far as the loader allows), and
a module's weights are widened while it runs. Either way every product and sum is in single
precision: an 8B model takes its 16 GB of weights and, for a moment, its largest matrix in 32 bits.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from quantize.arrays import Floats
from quantize.children import counted, report_progress, report_step
from quantize.manifest import Quality
from quantize.quality import built_child
from quantize.quality.fidelity import record
from quantize.quality.text import WINDOW, GradedQuestion, cut, grade, read_text
from quantize.source import SourceModel
from runtimes.machine.hardware import memory_now

logger = logging.getLogger(__name__)

_ROWS = 32  # questions that are answered together
_SHARE = 0.5  # of the memory that is free, for weights in single precision
_SMALL = 2**20  # parameters of a module that are widened once and for all


def refer(
    source: SourceModel, out: Path, text: Path | None, limit: int, window: int = WINDOW
) -> None:
    """Run ``source`` over the text in pieces of ``window`` tokens; what it gives goes to the folder
    ``out``."""
    if source.kind == "gguf":
        built_child.refer(source.weights[0], out, text, limit, window)
        return
    import torch

    given = read_text(text, limit)
    report_step("loading the tokenizer")
    ids, bos = encode(source, given.content)
    report_step("loading the float model")
    network = load_network(source)
    windows = cut(ids, context_of(network.config), bos, limit, window)
    keeps = "logits_to_keep" in inspect.signature(network.forward).parameters

    def scored() -> Iterator[Floats]:
        for window in counted(windows.ids, "windows"):
            last = len(window) - windows.first
            kept = {"logits_to_keep": last} if keeps else {}
            logits = network(torch.tensor([window]), use_cache=False, **kept).logits[0]
            yield logits[-last:-1].float().numpy()

    with torch.inference_mode():
        record(out, windows, given, scored())


def accuracy(source: SourceModel, questions: Sequence[GradedQuestion]) -> Quality:
    """How many of the graded questions ``source`` answers rightly."""
    if source.kind == "gguf":
        return built_child.accuracy(source.weights[0], questions)
    return grade(questions, answer(source, questions))


def answer(source: SourceModel, questions: Sequence[GradedQuestion]) -> list[str]:
    """Greedy answers of ``source`` in single precision, in order."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokenizer = source.tokenizer()
    report_step("loading the float model")
    network = load_network(source)
    prompts = [
        torch.tensor(
            tokenizer.apply_chat_template(
                question.messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
        for question in questions
    ]
    # Alike lengths together: little padding, and short answers do not wait for long ones.
    order = sorted(range(len(prompts)), key=lambda i: (questions[i].max_tokens, len(prompts[i])))
    answers = [""] * len(prompts)
    for start in range(0, len(order), _ROWS):
        report_progress(start, len(order), "questions")
        picked = order[start : start + _ROWS]
        ids = pad_sequence([prompts[i] for i in picked], True, padding_side="left")
        ones = [torch.ones_like(prompts[i]) for i in picked]
        with torch.inference_mode():
            made = network.generate(
                ids,
                attention_mask=pad_sequence(ones, True, padding_side="left"),
                do_sample=False,
                max_new_tokens=max(questions[i].max_tokens for i in picked),
                pad_token_id=_padding(network, tokenizer),
            )
        for new, i in zip(made[:, ids.shape[1] :], picked, strict=True):
            new = new[: questions[i].max_tokens]
            answers[i] = tokenizer.decode(new, skip_special_tokens=True)
    report_progress(len(order), len(order), "questions")
    return answers


def _padding(network: Any, tokenizer: Any) -> int:
    """Token that fills finished rows; it is stripped from the answer as a special token."""
    eos = network.generation_config.eos_token_id
    first = eos[0] if isinstance(eos, list) else eos
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else first or 0)


def load_network(source: SourceModel, *, wide: bool | None = None) -> Any:
    """The network of the Hugging Face model ``source``, ready to compute in single precision.

    ``wide`` says whether weights are held in single precision; None decides by the free memory.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if wide is None:
        stored = getattr(source.load(AutoConfig).dtype, "itemsize", 4)
        wide = source.bytes * 4 / stored < _SHARE * memory_now()[1]
    dtype = torch.float32 if wide else "auto"
    network = source.load(AutoModelForCausalLM, dtype=dtype).eval()
    if not wide:
        logger.info("weights are widened to single precision as they are used")
        _compute_in_single_precision(network)
    return network


def _compute_in_single_precision(network: Any) -> None:
    """Widen each module's own weights while it runs; small ones and buffers for good."""
    import torch

    for module in network.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.float())
        narrow = [
            p
            for p in module.parameters(recurse=False)
            if p.is_floating_point() and p.dtype != torch.float32
        ]
        if not narrow:
            continue
        if type(module) is torch.nn.Embedding:  # looks up a few rows: those are widened
            module.register_forward_hook(lambda _module, _inputs, rows: rows.float())
        elif sum(p.numel() for p in narrow) <= _SMALL:
            for p in narrow:
                p.data = p.data.float()
        else:
            _widen_while_called(module, narrow)


def _widen_while_called(module: Any, narrow: list[Any]) -> None:
    """Swap the parameters ``narrow`` for copies in single precision from call to return."""
    held: list[Any] = []

    def widen(*_: Any) -> None:
        held[:] = [p.data for p in narrow]
        for p in narrow:
            p.data = p.data.float()

    def restore(*_: Any) -> None:
        for p, data in zip(narrow, held, strict=True):
            p.data = data
        held.clear()

    module.register_forward_pre_hook(widen)
    module.register_forward_hook(restore, always_call=True)


def encode(source: SourceModel, text: str) -> tuple[list[int], int | None]:
    """The ids of ``text``, and the BOS id if the tokenizer begins every text with it.

    An EOS that the tokenizer adds at the end is taken off.
    """
    # A text longer than the model's context is meant to be: it is cut into windows.
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)
    tokenizer = source.tokenizer()
    plain = [int(i) for i in tokenizer(text, add_special_tokens=False).input_ids]
    special = [int(i) for i in tokenizer(text[:1]).input_ids]
    bos = tokenizer.bos_token_id
    if bos is None or not special or special[0] != bos:
        return plain, None
    return [int(bos), *plain], int(bos)


def context_of(config: Any) -> int:
    """The longest window that a model was made for; many-part models keep it one level down."""
    inner = config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
    return int(next((found for name in names if (found := getattr(inner, name, None))), 2**31))
