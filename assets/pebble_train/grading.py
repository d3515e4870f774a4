"""The graded set, and grading a saved model folder by really generating."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from pebble_data.base import Split
from pebble_data.long_chats import long_chat
from pebble_data.mixture import held_out
from transformers import AutoModelForCausalLM, AutoTokenizer

from pebble_train.packing import Encoder

GRADED_SEED = 2024
EVALUATION_SEED = 2025
PER_TASK = 20


@dataclass(frozen=True)
class Question:
    task: str
    messages: list[dict[str, str]]
    answer: str
    max_tokens: int


def write_graded(path: Path, tokenizer: bytes) -> int:
    """Held-out questions only; `max_tokens` leaves room for an answer that is wrong by being longer."""
    encoder = Encoder(tokenizer)
    lines = []
    for sample in held_out(Split.TEST, PER_TASK, GRADED_SEED):
        row = {
            "task": sample.task,
            "messages": [{"role": m.role, "content": m.content} for m in sample.question],
            "answer": sample.answer,
            "max_tokens": len(encoder.sp.encode(sample.answer)) + 16,
        }
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def write_evaluation(path: Path) -> None:
    """Held-out conversations one after another, as the chat template writes them: a text to measure
    built files on. None of them occurs in training; the seed is not the graded set's."""
    _write_held_out(path, Split.TEST, 16)


def write_calibration(path: Path) -> None:
    """Other held-out conversations: a text to choose the types of a file's tensors by."""
    _write_held_out(path, Split.DEV, 20)


def _write_held_out(path: Path, split: Split, each: int) -> None:
    samples = held_out(split, each, EVALUATION_SEED)
    random.Random(EVALUATION_SEED).shuffle(samples)
    turns = (message for sample in samples for message in sample.messages)
    path.write_text("".join(f"<|{m.role}|>\n{m.content}<|end|>\n" for m in turns))


def read_graded(path: Path) -> list[Question]:
    return [Question(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


@dataclass(frozen=True)
class Graded:
    question: Question
    said: str

    @property
    def right(self) -> bool:
        return self.said.strip() == self.question.answer.strip()


@torch.no_grad()
def grade(folder: Path, questions: list[Question], batch: int = 32) -> list[Graded]:
    """Greedy answers of the model in float32, questions of similar length together, padded on the left."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ordered = sorted(questions, key=lambda q: sum(len(m["content"]) for m in q.messages))
    done: list[Graded] = []
    for start in range(0, len(ordered), batch):
        part = ordered[start : start + batch]
        inputs = tokenizer.apply_chat_template(
            [q.messages for q in part],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            padding=True,
        )
        longest = max(q.max_tokens for q in part)
        out = model.generate(**inputs, max_new_tokens=longest, do_sample=False)
        fresh = out[:, inputs["input_ids"].shape[1] :]
        for question, ids in zip(part, fresh, strict=True):
            text = tokenizer.decode(ids[: question.max_tokens], skip_special_tokens=True)
            done.append(Graded(question, text))
    return done


def scores_by_task(graded: list[Graded]) -> dict[str, tuple[int, int]]:
    """Task -> (right answers, questions)."""
    counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in graded:
        right, asked = counts[row.question.task]
        counts[row.question.task] = (right + row.right, asked + 1)
    return dict(sorted(counts.items()))


@torch.no_grad()
def scores_by_distance(
    folder: Path, chats: int = 60, step: int = 256
) -> dict[int, tuple[int, int]]:
    """Long conversations: where an answer starts, in steps of 256 tokens -> (right, answers).

    An answer is right when each of its tokens is the model's first choice after the true text before it.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    encoder = Encoder((folder / "tokenizer.model").read_bytes())
    rng = random.Random(GRADED_SEED)
    counts: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for _ in range(chats):
        row = encoder.encode(long_chat(rng, Split.TEST, 32))
        ids = torch.tensor([row.ids[:1024]])
        guessed = [-1, *model(input_ids=ids).logits[0].argmax(-1).tolist()]
        for said, run in groupby(range(ids.shape[1]), key=lambda at: row.wanted[at]):
            places = list(run)
            if said and places[-1] < ids.shape[1] - 1:
                right, asked = counts[places[0] // step * step]
                hit = all(guessed[at] == row.ids[at] for at in places)
                counts[places[0] // step * step] = (right + hit, asked + 1)
    return dict(sorted(counts.items()))
