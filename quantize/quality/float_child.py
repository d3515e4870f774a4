"""Runs in a child process: the float model answers the graded questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantize.build.child import report_progress, report_step

_ROWS = 32


def answer(
    model: Path, questions: list[dict[str, Any]], *, trust_remote_code: bool = False
) -> list[str]:
    """Greedy answers of the Hugging Face folder ``model`` in single precision, in order."""
    import torch
    from transformers import AutoTokenizer

    from quantize.quality.float_model import load_network

    tokenizer = AutoTokenizer.from_pretrained(
        model, local_files_only=True, trust_remote_code=trust_remote_code
    )
    report_step("loading the float model")
    network = load_network(model, trust_remote_code=trust_remote_code)
    prompts = [
        tokenizer.apply_chat_template(
            question["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for question in questions
    ]
    # Alike lengths together: little padding, and short answers do not wait for long ones.
    order = sorted(range(len(prompts)), key=lambda i: (questions[i]["max_tokens"], len(prompts[i])))
    answers = [""] * len(prompts)
    for start in range(0, len(order), _ROWS):
        report_progress(start, len(order), "questions")
        picked = order[start : start + _ROWS]
        longest = max(len(prompts[i]) for i in picked)
        ids = torch.zeros((len(picked), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(picked):
            ids[row, longest - len(prompts[i]) :] = torch.tensor(prompts[i])
            mask[row, longest - len(prompts[i]) :] = 1
        with torch.inference_mode():
            made = network.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=max(questions[i]["max_tokens"] for i in picked),
                pad_token_id=_padding(network, tokenizer),
            )
        for row, i in enumerate(picked):
            new = made[row, longest : longest + questions[i]["max_tokens"]]
            answers[i] = tokenizer.decode(new, skip_special_tokens=True)
    report_progress(len(order), len(order), "questions")
    return answers


def _padding(network: Any, tokenizer: Any) -> int:
    """What finished rows are filled with; it is stripped from the answer as a special token."""
    eos = network.generation_config.eos_token_id
    first = eos[0] if isinstance(eos, list) else eos
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else first or 0)
