"""Exact-match scores, cheaply while training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from pebble_data.base import Sample
from transformers import LlamaForCausalLM

from pebble_train.model import wanted_logits
from pebble_train.packing import Encoder, Row, collate
from pebble_train.tokenizer import EOS

_LENGTH = 256


def _last_answer_only(row: Row) -> Row:
    """Only the last assistant turn counts: clear the wanted marks before the last gap."""
    last = len(row.wanted)
    while last > 0 and row.wanted[last - 1]:
        last -= 1
    return Row(row.ids, [False] * last + row.wanted[last:])


@torch.no_grad()
def teacher_forced_scores(
    model: LlamaForCausalLM, encoder: Encoder, samples: Sequence[Sample], device: torch.device
) -> dict[str, float]:
    """The part of the samples per task whose every answer token is the model's first choice.

    That is exactly when greedy decoding would give the answer, at the price of one forward pass.
    """
    was_training = model.training
    model.eval()
    pad = encoder.sp.piece_to_id(EOS)
    right: dict[str, list[bool]] = defaultdict(list)
    rows = [(_last_answer_only(encoder.encode(s.messages)), s.task) for s in samples]
    rows = [(row, task) for row, task in rows if len(row.ids) <= _LENGTH]
    # Sorted by length: little padding, one conversation a row.
    rows.sort(key=lambda pair: len(pair[0].ids))
    for start in range(0, len(rows), 32):
        part = rows[start : start + 32]
        length = max(len(row.ids) for row, _ in part)
        batch = collate([[row] for row, _ in part], length, pad).to(device)
        logits, targets = wanted_logits(model, batch)
        hits = (logits.argmax(-1) == targets).tolist()
        at = 0
        for row, task in part:
            n = sum(row.wanted)
            right[task].append(all(hits[at : at + n]))
            at += n
    model.train(was_training)
    return {task: sum(hits) / len(hits) for task, hits in right.items()}


def overall(scores: dict[str, float]) -> float:
    return sum(scores.values()) / max(1, len(scores))
