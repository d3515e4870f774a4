"""What a training step gets: its learning rate, the length of its rows, and its batch."""

from __future__ import annotations

import random

from pebble_data.mixture import WEIGHTS, conversations

from pebble_train.packing import Batch, Encoder, collate, pack
from pebble_train.tokenizer import EOS


def learning_rate_factor(done: float, warmup: float = 0.02, decay_from: float = 0.45) -> float:
    """Warm up, stay, then fall in a straight line to zero; `done` is the part of the time that is used up."""
    if done < warmup:
        return max(done / warmup, 0.02)
    return 1.0 if done < decay_from else max(0.0, (1 - done) / (1 - decay_from))


def row_length(rng: random.Random, done: float) -> int:
    """Mostly short rows; some longer ones for variety.

    Conversations in a row do not see each other, so this teaches no distance longer than the longest
    conversation, which is about 330 tokens: the model card says what that costs.
    """
    if done > 0.5 and rng.random() < 0.04:
        return 1024
    return 512 if rng.random() < 0.08 else 256


class Batches:
    """Draws conversations with adjustable task weights and packs them into batches."""

    def __init__(self, encoder: Encoder, seed: int, tokens_per_step: int) -> None:
        self.weights = dict(WEIGHTS)
        self._rng = random.Random(seed)
        self._tokens = tokens_per_step
        self._pad = encoder.sp.piece_to_id(EOS)
        rows = (encoder.encode(m) for m in conversations(self._rng, self.weights))
        self._packed = {length: pack(rows, length) for length in (256, 512, 1024)}

    def next(self, done: float) -> Batch:
        length = row_length(self._rng, done)
        groups = [next(self._packed[length]) for _ in range(max(1, self._tokens // length))]
        return collate(groups, length, self._pad)

    def favour_weak_tasks(self, scores: dict[str, float]) -> None:
        """A task that is solved keeps a fifth of its weight; one that is all wrong gets 1.5 times it."""
        for task, score in scores.items():
            self.weights[task] = WEIGHTS[task] * (0.2 + 1.3 * (1 - score))
