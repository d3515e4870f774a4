"""The prompts of a benchmark: from a file of texts, or of random tokens."""

import json
import random
from pathlib import Path
from typing import Any

from app.bench.harness import BenchOptions
from app.bench.work import about, random_prompts
from runtimes.engine.engine import Engine
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings


class PromptFileError(IngotError):
    """The file of prompts cannot be used."""

    exit_code = 2


def bench_prompts(path: Path, options: BenchOptions) -> list[list[int]]:
    """Token ids for the model at ``path``: what ``options.prompts`` holds, through the chat
    template if there is one, or ``options.requests`` random prompts of half to one and a half
    ``options.prompt_tokens``.
    """
    with Engine.load(path, RunnerSettings(slots=1, context=8, threads=1)) as engine:
        if options.prompts is None:
            dice = random.Random(options.requests)
            lengths = [about(options.prompt_tokens, dice) for _ in range(options.requests)]
            return random_prompts(engine, lengths, options.requests)
        texts = read_texts(options.prompts)
        if engine.model.chat_template is None:
            return [engine.encode(text) for text in texts]
        return [engine.encode_chat([{"role": "user", "content": text}]) for text in texts]


def read_texts(path: Path) -> list[str]:
    """A prompt a line; in a .jsonl file an object with "prompt" or "text", or the first of "turns"
    (the form of MT-bench's and Vicuna's questions). Raises PromptFileError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFileError(f"--prompts: {path} cannot be read: {error}") from error
    texts = [
        _text(line, f"{path}, line {number}") if path.suffix == ".jsonl" else line
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not texts:
        raise PromptFileError(f"--prompts: {path} holds no prompt")
    return texts


def _text(line: str, where: str) -> str:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise PromptFileError(f"--prompts: {where} is not JSON: {error}") from error
    found = value if isinstance(value, dict) else {}
    turns = found.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    for text in (found.get("prompt"), found.get("text"), first):
        if isinstance(text, str) and text.strip():
            return text
    raise PromptFileError(f'--prompts: {where} has no "prompt", "text" or "turns"')
