"""Forced tokens and guesses, several a step: what they gain, and that they never lose."""

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.bench.frame import LAYOUTS, BenchResult, in_turn, samples
from app.bench.options import BenchOptions
from app.bench.work import encoded, loaded
from app.figures import SEVERAL_A_STEP
from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.request import Completion, Constraint, FinishReason, Request, SamplingParams
from runtimes.settings import SchedulerSettings

_ROWS = (1, 2, 4, 16)
_ANSWERS = 4  # of a round, at least
_RECORD = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "family_name": {"type": "string", "maxLength": 12},
        "department": {"enum": ["engineering", "marketing", "accounting", "legal"]},
        "years_of_service": {"type": "integer", "minimum": 0, "maximum": 40},
        "permanent_contract": {"type": "boolean"},
        "office": {"enum": ["Lisbon", "Rotterdam", "Gothenburg"]},
    },
    "required": [
        "first_name",
        "family_name",
        "department",
        "years_of_service",
        "permanent_contract",
        "office",
    ],
    "additionalProperties": False,
}
_PEOPLE = ("Ann Lund", "Joao Reis", "Mia Berg", "Tom Visser", "Eva Dahl", "Rui Costa")
_PAGE = """\
The ferry to the island leaves at seven in the morning and comes back at six. In winter it goes on
Mondays and Fridays only. A ticket is nine euros, and children under six travel free. Bicycles go
on the lower deck, beside the mail. The crossing takes fifty minutes when the sea is calm; in a
storm the captain waits in the harbour until the wind drops below eight knots."""
_PROSE = (
    "The old clockmaker of the town had never",
    "When the rains ended, the valley filled with",
    "My grandmother used to say that bread",
    "In the year of the great frost, the ships",
)
_CHAT = (
    "Why is the sky blue?",
    "What should I pack for a week in the mountains?",
    "Explain to a child how money works.",
    "Which is better for a small garden, apples or pears?",
)
_CODE = (
    "def merge_sort(items):\n",
    "class Stack:\n    def __init__(self):\n",
    "import csv\n\ndef read_rows(path):\n",
    "def parse_date(text):\n    year, month, day =",
)


@dataclass(frozen=True, slots=True)
class _Work:
    """Prompts of one kind, and what is asked of them."""

    prompts: Sequence[str]
    rows: Sequence[int]  # how many decode at once
    chat: bool = False
    params: SamplingParams | None = None  # without, as many tokens as are asked for


@dataclass(frozen=True, slots=True)
class _Round:
    seconds: float
    answers: list[Completion]

    @property
    def tokens(self) -> int:
        return sum(one.usage.completion_tokens for one in self.answers)


def speculation(path: Path, options: BenchOptions) -> BenchResult:
    """Requests with and without, in turn, each side in a process of its own: rows a second of
    JSON objects, tokens a second of a page that is copied, and of prose, chat and code."""
    figures: dict[str, object] = {"decode_tokens": options.decode_tokens}
    lines = []
    layouts = LAYOUTS if path.suffix == ".gguf" else {"split": False}
    for rows in [count for count in _ROWS if count <= options.rows]:
        for layout, unified in layouts.items():
            if rows == 1 and unified:
                continue  # no other row to be apart from
            settings = options.settings(512 + options.decode_tokens, rows=rows, unified=unified)
            with ExitStack() as stack:
                sides: dict[bool, EngineApi] = {}
                for asked in (False, True):
                    draft = Path(options.draft) if asked and options.draft else None
                    scheduling = SchedulerSettings(speculation=asked)
                    engine = loaded(path, replace(settings, draft=draft), scheduling, worker=True)
                    sides[asked] = stack.enter_context(engine)
                for kind, work in _works(options).items():
                    if rows in work.rows:
                        found, line = _compared(sides, work, rows, options)
                        name = f"{kind}, {rows} rows" + (f", {layout}" if rows > 1 else "")
                        figures[name] = found
                        lines.append(f"  {name}: {line}")
    return BenchResult(figures, ["with speculation : without, median of the rounds", *lines])


def _works(options: BenchOptions) -> dict[str, _Work]:
    constraint = Constraint("json_schema", json.dumps(_RECORD))
    record = SamplingParams(max_tokens=160, constraint=constraint)
    asked = [f"Invent a record as JSON for our employee {name}." for name in _PEOPLE]
    copied = f"{_PAGE}\n\n{_PAGE}\n\n{_PAGE[:120]}"
    return {
        "JSON": _Work(asked, (1, 16), chat=True, params=record),
        "copy": _Work([copied], (1,)),
        "prose": _Work(_PROSE, _ROWS),
        "chat": _Work(_CHAT, _ROWS, chat=True),
        "code": _Work(_CODE, _ROWS),
    }


def _compared(
    sides: dict[bool, EngineApi], work: _Work, rows: int, options: BenchOptions
) -> tuple[dict[str, object], str]:
    rounds = in_turn(
        {asked: partial(_ask, engine, work, rows, options) for asked, engine in sides.items()},
        options.repeats,
        warm_up=True,
    )
    # Answers of one constraint have one form, and not quite the same length where logits are near.
    by_row = work.params is not None
    speeds = samples(rounds, lambda r: (len(r.answers) if by_row else r.tokens) / r.seconds)
    ratio = speeds[True] / speeds[False]
    pairs = [
        (one.token_ids, other.token_ids)
        for plain, more in zip(rounds[False], rounds[True], strict=True)
        for one, other in zip(plain.answers, more.answers, strict=True)
    ]
    same = sum(one == other for one, other in pairs)
    tokens = sum(r.tokens for r in rounds[True])
    timings = [answer.timings for r in rounds[True] for answer in r.answers]
    of = {name: sum(getattr(one, name) for one in timings) for name in SEVERAL_A_STEP}
    figures: dict[str, object] = {
        "ratio": ratio,
        "unit": "rows/s" if by_row else "tok/s",
        "without": speeds[False],
        "with": speeds[True],
        "answers": len(pairs),
        "equal_answers": same,
        "tokens": tokens,
        **of,
    }
    drafts = ""
    if of["drafted_tokens"]:
        drafts = f", the draft's {of['accepted_drafts']:,} of {of['drafted_tokens']:,}"
    return figures, (
        f"{ratio:.3f} ({ratio.spread('.3f')}; {speeds[False]:.2f} to {speeds[True]:.2f}"
        f" {figures['unit']}); {same} of {len(pairs)} answers equal; of {tokens:,} tokens"
        f" {of['forced_tokens']:,} forced,"
        f" {of['accepted_tokens']:,} of {of['proposed_tokens']:,} guesses right{drafts}"
    )


def _ask(engine: EngineApi, work: _Work, rows: int, options: BenchOptions, seed: int) -> _Round:
    """All at once; the prompts of a round begin in a way of their own, so that none is cached."""
    params = work.params or SamplingParams(max_tokens=options.decode_tokens, ignore_eos=True)
    count = max(rows, _ANSWERS if work.params else 1)
    texts = itertools.islice(itertools.cycle(work.prompts), count)
    prompts = []
    for number, text in enumerate(texts):
        said = f"No. {(seed + 1) * count + number + 1}. {text}"
        prompts.append(encoded(engine, said) if work.chat else engine.encode(said))
    streams = [engine.submit(Request(prompt, params)) for prompt in prompts]
    answers = [stream.result() for stream in streams]
    for answer in answers:
        if answer.finish_reason is FinishReason.ERROR:
            raise IngotError(f"a request of the benchmark failed: {answer.error}")
    decode = max(one.timings.total_s for one in answers)
    if work.params is None:
        decode -= max(one.timings.ttft_s for one in answers)
    return _Round(decode, answers)
