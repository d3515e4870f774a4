"""Conversations to token ids, and token ids to full rows without padding waste."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sentencepiece
import torch
from pebble_data.base import Message

from pebble_train.tokenizer import BOS, END


@dataclass(frozen=True)
class Row:
    ids: list[int]
    wanted: list[bool]  # is this token one that the assistant has to say?


@dataclass(frozen=True)
class Batch:
    ids: torch.Tensor  # [rows, length]
    targets: torch.Tensor  # [rows, length], -100 where nothing is asked
    chats: torch.Tensor  # [rows, length], which conversation a token belongs to
    positions: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        moved = (t.to(device) for t in (self.ids, self.targets, self.chats, self.positions))
        return Batch(*moved)


class Encoder:
    """Renders the chat template straight to ids; special tokens cut the text, so pieces never cross them."""

    def __init__(self, model: bytes) -> None:
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.bos = self.sp.piece_to_id(BOS)
        self.end = self.sp.piece_to_id(END)

    def encode(self, messages: Iterable[Message]) -> Row:
        ids, wanted = [self.bos], [False]
        newline = self.sp.encode("\n")
        for message in messages:
            head = [self.sp.piece_to_id(f"<|{message.role}|>"), *newline]
            body = [*self.sp.encode(message.content), self.end]
            said = message.role == "assistant"
            ids += [*head, *body, *newline]
            wanted += [False] * len(head) + [said] * len(body) + [False] * len(newline)
        return Row(ids[: -len(newline)], wanted[: -len(newline)])


def pack(rows: Iterator[Row], length: int, waiting: int = 64) -> Iterator[list[Row]]:
    """Endless groups of conversations that fit into `length`: the longest waiting one that still fits goes next."""
    pool: list[Row] = []
    while True:
        room, group = length, []
        while True:
            while len(pool) < waiting:
                row = next(rows)
                if len(row.ids) <= length:
                    pool.append(row)
            fits = [i for i, row in enumerate(pool) if len(row.ids) <= room]
            if not fits:
                break
            # The oldest first while there is plenty of room, so that long ones do not starve.
            best = fits[0] if room > length // 2 else max(fits, key=lambda i: len(pool[i].ids))
            row = pool.pop(best)
            group.append(row)
            room -= len(row.ids)
        yield group


def collate(groups: list[list[Row]], length: int, pad: int) -> Batch:
    shape = (len(groups), length)
    ids = torch.full(shape, pad, dtype=torch.long)
    targets = torch.full(shape, -100, dtype=torch.long)
    chats = torch.full(shape, -1, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    for r, group in enumerate(groups):
        at = 0
        for c, row in enumerate(group):
            n = len(row.ids)
            ids[r, at : at + n] = torch.tensor(row.ids)
            chats[r, at : at + n] = c
            positions[r, at : at + n] = torch.arange(n)
            for k in range(1, n):
                if row.wanted[k]:
                    targets[r, at + k - 1] = row.ids[k]
            at += n
    return Batch(ids, targets, chats, positions)


def attention_mask(batch: Batch) -> torch.Tensor:
    """Each token sees the earlier tokens of its own conversation: [rows, 1, length, length], True = visible."""
    length = batch.ids.shape[1]
    same = batch.chats[:, :, None] == batch.chats[:, None, :]
    return (
        same & torch.ones(length, length, dtype=torch.bool, device=same.device).tril()
    ).unsqueeze(1)
