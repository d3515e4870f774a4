"""The engine against itself: requests at random, choosing the tokens, the worker process, a JSON
schema, LoRA adapters, and several tokens a step."""

import itertools
import json
import random
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.frame import (
    LAYOUTS,
    TOGETHER,
    BenchResult,
    Figures,
    Samples,
    Window,
    about,
    between,
    compared,
    encoded,
    finished,
    first_tokens,
    greedy,
    host_share,
    in_turn,
    loaded,
    lockstep_rows,
    random_prompts,
    run,
    samples,
    step_tps,
    timed_run,
    wait_for,
    wall_tps,
)
from app.bench.options import BenchOptions
from app.figures import SEVERAL_A_STEP
from runtimes.api import EngineApi
from runtimes.engine.loading import load_runner
from runtimes.errors import IngotError, RequestError
from runtimes.models.gguf import gguf_files, read_header
from runtimes.models.registry import backend_of, read_model
from runtimes.request import Completion, Constraint, FinishReason, Request, SamplingParams
from runtimes.runner import Logits, Runner, StepRow, require_full_logits
from runtimes.sampling import Sampled, SamplerState, sample
from runtimes.settings import RunnerSettings, SchedulerSettings

# Requests that arrive and leave at random against rows in lockstep, on one engine.
#
# Both decode the same number of tokens. A finished request is followed by none, one or two new
# ones, so that now a slot stays empty and now a few wait; prompts and answers are half to one and a
# half times as long as in lockstep. Two rates count: decode tokens over the time of decode steps,
# which shows what holes and changing rows cost; and over all the time, prefill included. Both
# prefill about one prompt for every row: in lockstep before decoding, otherwise in between.
#
# Random arrivals run twice: with prompts going in at once, as batch jobs and the native tools do,
# and with prefill bounded so that no running row waits long for its next token, the default
# elsewhere. Where prefill is slow, the bound keeps slots from filling, and steps with few rows are
# dear.

_MOST_WAITING = 4
_FEWEST_MISSING = 1  # of the slots, at least all but this many have a request
_LOCKSTEP = "lockstep"


def churn(path: Path, options: BenchOptions) -> BenchResult:
    """Lockstep and churn in turn on each cache layout there is: churn over lockstep, of the steps
    and end to end."""
    need = 3 * (options.prompt_tokens + options.decode_tokens) // 2 + 2
    lines: list[str] = []
    layouts: dict[str, Figures] = {}
    for layout, unified in LAYOUTS.items():
        if unified and "unified_kv" not in backend_of(read_model(path)).knows:
            continue
        settings = options.settings(need, unified=unified)
        bounded = SchedulerSettings(prefix_cache=False)
        sides = {
            # In lockstep only if every prompt is in before the first row decodes.
            _LOCKSTEP: partial(_lockstep_job, path, settings, options),
            "at once": partial(_random_job, path, settings, TOGETHER, options),
            "bounded": partial(_random_job, path, settings, bounded, options),
        }
        taken = in_turn(sides, options.repeats)
        layouts[layout] = {
            side: {"decode_tokens": [window.tokens for window in windows]}
            for side, windows in taken.items()
        }
        for kind, rate in (("of_steps", step_tps), ("end_to_end", wall_tps)):
            tps = samples(taken, rate)
            title = f"{layout}, {options.rows} slots: decode tok/s {kind.replace('_', ' ')}"
            lines += compared(title, tps)
            for side, found in tps.items():
                ratio = (found / tps[_LOCKSTEP]).median
                layouts[layout][side] |= {f"decode_tps_{kind}": found, f"ratio_{kind}": ratio}
    return BenchResult({"layouts": layouts}, lines)


def _lockstep_job(path: Path, settings: RunnerSettings, options: BenchOptions, seed: int) -> Window:
    """Window from the submission to the end of rows that are all alike."""
    with loaded(path, settings, TOGETHER) as engine:
        prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
        before, begin = engine.stats(), time.perf_counter()
        run(engine, prompts, [greedy(options.decode_tokens + 1)] * options.rows)
        return between(before, begin, engine.stats(), time.perf_counter())


def _random_job(
    path: Path,
    settings: RunnerSettings,
    scheduling: SchedulerSettings,
    options: BenchOptions,
    seed: int,
) -> Window:
    """Window from the first token of the first rows until as many tokens as in lockstep are
    decoded."""
    dice, rows = random.Random(seed), options.rows
    with loaded(path, settings, scheduling) as engine:
        requests = iter(_requests(engine, options, dice))
        begun = first_tokens(engine.stats()) + rows
        running = [engine.submit(next(requests)) for _ in range(rows)]

        def feed(reached: bool) -> bool:
            """Let none, one or two requests follow each that has ended; return ``reached``."""
            for stream in [stream for stream in running if stream.done]:
                finished([stream])
                running.remove(stream)
                fewest, most = rows - _FEWEST_MISSING, rows + _MOST_WAITING
                count = min(max(dice.randrange(3), fewest - len(running)), most - len(running))
                running.extend(engine.submit(next(requests)) for _ in range(count))
            return reached

        try:
            before, begin = wait_for(engine, lambda stats: feed(first_tokens(stats) >= begun))
            enough = before.decode_tokens + rows * options.decode_tokens
            after, end = wait_for(engine, lambda stats: feed(stats.decode_tokens >= enough))
        finally:
            for stream in running:
                stream.cancel()
            for stream in running:
                stream.result()
    return between(before, begin, after, end)


def _requests(engine: EngineApi, options: BenchOptions, dice: random.Random) -> list[Request]:
    """Requests, more than the window uses. The first rows are met at any point of their answers."""
    count = 6 * options.rows
    lengths = [about(options.prompt_tokens, dice) for _ in range(count)]
    prompts = random_prompts(engine, lengths, dice.randrange(2**32))
    answers = [dice.randint(1, 3 * options.decode_tokens // 2) for _ in range(options.rows)]
    answers += [about(options.decode_tokens, dice) for _ in range(count - options.rows)]
    return [
        Request(prompt, greedy(answer + 1)) for prompt, answer in zip(prompts, answers, strict=True)
    ]


# Choosing the tokens, and the worker process.

_PROMPT = 32  # tokens behind which decode is timed
_SEEN = 500  # tokens that penalties count from the start
_WARM_UP = 3

_TOP_P: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "temperature, top-p": {"temperature": 0.8, "top_p": 0.95},
    "temperature, top-k, top-p": _TOP_P,
    "the same with penalties": {**_TOP_P, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
}


def sampling(path: Path, options: BenchOptions) -> BenchResult:
    """Measure one model file at ``rows`` rows, ``repeats`` times for each of ``PARAMETERS``.

    Steps and sampling alternate as in the engine, on the thread that runs the steps, one set of
    parameters after each step: what a step leaves behind (caches, threads that still spin) counts.
    Raises what loading does, and RequestError for a context that is too short.
    """
    rows, repeats = options.rows, options.repeats
    context = _PROMPT + _WARM_UP + repeats * len(PARAMETERS) + 1
    settings = RunnerSettings(slots=rows, context=context, threads=options.cores)
    runner = load_runner(read_model(path), settings)
    try:
        if runner.capabilities.context < context:
            raise RequestError(
                f"{repeats} repeats need a context of {context} tokens; the model's is "
                f"{runner.capabilities.context}; take fewer"
            )
        vocabulary = runner.capabilities.vocab_size
        step_s, real, flat = _measure(runner, rows, repeats)
    finally:
        runner.close()
    shares = {
        name: {"share": real[name].median / step_s, "flat_share": flat[name].median / step_s}
        for name in PARAMETERS
    }
    lines = [
        f"{rows} rows, {vocabulary:,} tokens: a decode step takes "
        f"{1e3 * step_s:.2f} ms; sampling of it:",
        *(
            f"  {name:26s} {one['share']:7.2%}   (flat logits {one['flat_share']:.2%})"
            for name, one in shares.items()
        ),
    ]
    figures = {"vocabulary": vocabulary, "step_s": step_s, "sampling": shares}
    return BenchResult(figures, lines)


def _measure(
    runner: Runner, rows: int, repeats: int
) -> tuple[float, dict[str, Samples], dict[str, Samples]]:
    """Seconds: of the median decode step of all rows in the native library, and by ``PARAMETERS``
    of one call of ``sample`` for all rows, on the model's own logits, and on normally distributed
    ones of the same size, the worst case of a search for the likeliest.
    """
    vocabulary = runner.capabilities.vocab_size
    dice = random.Random(rows)
    seen = [dice.randrange(vocabulary) for _ in range(_SEEN)]
    states = {
        name: [SamplerState(SamplingParams(seed=row, **fields), seen) for row in range(rows)]
        for name, fields in PARAMETERS.items()
    }
    prompts = [[dice.randrange(vocabulary) for _ in range(_PROMPT)] for _ in range(rows)]
    tokens = [int(_step(runner, [StepRow(i, 0, prompts[i], 1)]).argmax()) for i in range(rows)]
    flat = np.random.default_rng(rows).normal(0, 1, (rows, vocabulary)).astype(np.float32)
    steps = Samples()
    real = {name: Samples() for name in PARAMETERS}
    even = {name: Samples() for name in PARAMETERS}
    turns = [*list(PARAMETERS)[:_WARM_UP], *list(PARAMETERS) * repeats]
    for turn, name in enumerate(turns):
        if turn == _WARM_UP:
            for found in (steps, *real.values(), *even.values()):
                found.clear()
        plan = [StepRow(slot, _PROMPT + turn, [token], 1) for slot, token in enumerate(tokens)]
        begin = time.perf_counter()
        logits = _step(runner, plan)
        steps.append(time.perf_counter() - begin)
        real[name].append(_timed(logits, states[name]))
        tokens = _tokens(sample(logits, states["greedy"]))
        even[name].append(_timed(flat, states[name]))
    return steps.median, real, even


def _step(runner: Runner, rows: Sequence[StepRow]) -> Logits:
    return require_full_logits(runner.execute(rows))


def _timed(logits: Logits, states: Sequence[SamplerState]) -> float:
    """Seconds of one call; the states move on to their next numbers."""
    begin = time.perf_counter()
    sampled = sample(logits, states)
    seconds = time.perf_counter() - begin
    for state, token in zip(states, _tokens(sampled), strict=True):
        state.accept(token)
    return seconds


def _tokens(sampled: Sequence[Sampled]) -> list[int]:
    return [one.token for one in sampled if one.token is not None]


_BEHIND = 16  # tokens of a prompt; what is compared is decoding


def worker_overhead(path: Path, options: BenchOptions) -> BenchResult:
    """The engine in a worker process against the engine in this one: greedy decoding with 1 row and
    with ``options.rows``, in turn on both."""
    figures: Figures = {}
    lines: list[str] = []
    for rows in (1, options.rows):
        settings = options.settings(_BEHIND + options.decode_tokens + 1, rows=rows)
        with loaded(path, settings) as engine, loaded(path, settings, worker=True) as other:
            sides = {
                side: partial(_decode_tps, one, options.decode_tokens)
                for side, one in (("here", engine), ("worker", other))
            }
            tps = samples(in_turn(sides, options.repeats), float)
        ratio = (tps["worker"] / tps["here"]).median
        figures[str(rows)] = {f"{side}_tps": found for side, found in tps.items()}
        figures[str(rows)]["tps_ratio"] = ratio
        lines += compared(f"{rows} row{'s' * (rows > 1)}: tok/s", tps)
    return BenchResult({"rows": figures}, lines)


def _decode_tps(engine: EngineApi, tokens: int, seed: int) -> float:
    """Tokens a second of all rows over the time from the first submission to the last row's end."""
    rows = engine.slots
    prompts = random_prompts(engine, [_BEHIND] * rows, seed)
    engine.trim()  # else a prompt's second use would skip its prefill
    seconds, _ = timed_run(engine, prompts, [greedy(tokens)] * rows)
    return rows * tokens / seconds


# A JSON schema.

# Objects without end, so that no row is done before the others: numbers, texts, choices.
_SCHEMA = {
    "type": "array",
    "minItems": 10_000,
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "string"},
            "kind": {"enum": ["first", "second", "third"]},
            "scores": {"type": "array", "items": {"type": "number"}, "minItems": 2},
        },
        "required": ["id", "name", "kind", "scores"],
        "additionalProperties": False,
    },
}


def constrained(path: Path, options: BenchOptions) -> BenchResult:
    """Rows free and within the schema in turn; the warm-up compiles the schema."""
    within = SamplingParams(constraint=Constraint("json_schema", json.dumps(_SCHEMA)))
    with loaded(path, options.settings(), TOGETHER) as engine:
        sides = {
            "free": partial(lockstep_rows, engine, options),
            "constrained": partial(lockstep_rows, engine, options, params=within),
        }
        taken = in_turn(sides, options.repeats, warm_up=True)
    tps, shares = samples(taken, wall_tps), samples(taken, host_share)
    cost = 1 - (tps["constrained"] / tps["free"]).median  # the share of the speed that is lost
    # How much more of a step is outside the native library: steadier than the speed.
    host_cost = shares["constrained"].median - shares["free"].median
    figures = {"rows": options.rows, **{f"{side}_tps": found for side, found in tps.items()}}
    lines = compared(f"{options.rows} rows: decode tok/s", tps)
    lines.append(
        f"  {cost:.1%} slower within a JSON schema; {host_cost:.2%} more of a step is outside the"
        " native library"
    )
    return BenchResult({**figures, "cost": cost, "host_cost": host_cost}, lines)


# LoRA adapters.

_COUNTS = (1, 2, 4, 8)
_RANK = 16
_JOB = 4  # requests for each slot
_MATRICES = "attn_q attn_k attn_v attn_qkv attn_output ffn_gate ffn_up ffn_down".split()
_TEXT, _F32 = 8, 6  # types of GGUF's metadata
_ALIGNMENT = 32


def adapters(path: Path, options: BenchOptions) -> BenchResult:
    """Rows without adapters and dealt out to 1, 2, 4, 8 of them; then more requests than there are
    slots, without adapters and dealt out to all of them. Each pair in turn."""
    counts = [count for count in _COUNTS if count <= options.rows]
    need = options.prompt_tokens + 3 * options.decode_tokens // 2 + 2
    with (
        _random_adapters(path, counts[-1]) as files,
        loaded(path, options.settings(need), TOGETHER) as engine,
    ):

        def rows(count: int, seed: int) -> Window:
            return lockstep_rows(engine, options, seed, adapters=_load(engine, files[:count]))

        def job(count: int, seed: int) -> float:
            """Tokens a second, prefill included, of requests that wait for slots."""
            dice, names = random.Random(seed), _load(engine, files[:count])
            prompts = random_prompts(engine, [options.prompt_tokens] * _JOB * options.rows, seed)
            params = [greedy(about(options.decode_tokens, dice)) for _ in prompts]
            seconds, done = timed_run(engine, prompts, params, names)
            return sum(one.usage.completion_tokens for one in done) / seconds

        sides = {count: partial(rows, count) for count in (0, *counts)}
        windows = in_turn(sides, options.repeats, warm_up=True)
        jobs = in_turn({n: partial(job, n) for n in (0, counts[-1])}, options.repeats)
    tps, job_tps = samples(windows, wall_tps), samples(jobs, float)
    alone, dealt = job_tps.values()
    many = _JOB * options.rows
    figures = {
        "rows": options.rows,
        "base_tps": tps[0],
        "tps": {str(count): tps[count] for count in counts},
        "ratio": {str(count): tps[count] / tps[0] for count in counts},
        "job": {"requests": many, "base_tps": alone, "tps": dealt, "ratio": dealt / alone},
    }
    title = f"{options.rows} rows by adapters, of rank {_RANK}: decode tok/s"
    lines = compared(title, {f"{count} adapters": found for count, found in tps.items()})
    title = f"{many} requests of about as many tokens, prefill included"
    lines += compared(title, {f"{count} adapters": found for count, found in job_tps.items()})
    return BenchResult(figures, lines)


def _load(engine: EngineApi, files: Sequence[Path]) -> list[str]:
    """Have these adapters loaded and no other: it might cost, too."""
    names = [file.stem for file in files]
    for name in engine.adapters - set(names):
        engine.unload_adapter(name)
    for file in files:
        if file.stem not in engine.adapters:
            engine.load_adapter(file.stem, file)
    return names


@contextmanager
def _random_adapters(model: Path, count: int) -> Iterator[list[Path]]:
    if model.is_dir():  # a graph does not say its matrices' names
        beside = gguf_files(model.parent)
        if not beside:
            raise RequestError(f"{model} has no GGUF file of the same model beside it")
        model = beside[0]
    with tempfile.TemporaryDirectory(prefix="ingot-adapters-") as folder:
        yield [random_adapter(model, Path(folder) / f"a{seed}.gguf", seed) for seed in range(count)]


def random_adapter(model: Path, path: Path, seed: int) -> Path:
    """Write an adapter of small random numbers for every matrix of the layers of a GGUF model."""
    header, dice = read_header(model), np.random.default_rng(seed)
    table, data, count = bytearray(), bytearray(), 0
    for tensor in header.tensors:
        _, _, name = tensor.name.partition("blk.")
        if name.endswith(".weight") and name.split(".")[1] in _MATRICES and len(tensor.shape) == 2:
            columns, rows = tensor.shape
            for side, shape in (("a", (_RANK, columns)), ("b", (rows, _RANK))):
                table += _string(f"{tensor.name}.lora_{side}")
                table += struct.pack("<IQQIQ", 2, *shape[::-1], 0, len(data))
                data += _padded(dice.normal(0, 0.01, shape).astype("<f4").tobytes())
                count += 1
    words = {
        "general.type": "adapter",
        "general.architecture": str(header.metadata["general.architecture"]),
        "adapter.type": "lora",
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, count, 1 + len(words))
    for key, value in words.items():
        head += _string(key) + struct.pack("<I", _TEXT) + _string(value)
    head += _string("adapter.lora.alpha") + struct.pack("<If", _F32, float(_RANK))
    path.write_bytes(_padded(head + table) + data)
    return path


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


# Forced tokens and guesses, several a step: what they gain, and that they never lose.

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
