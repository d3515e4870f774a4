"""One batch job in several ways: with and without the prefix cache, by each batching strategy, with
reproducible answers, and by other programs. Every run has an engine of its own."""

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.bench.frame import (
    TOGETHER,
    UNBOUNDED,
    BenchResult,
    Figures,
    Samples,
    Side,
    about,
    compared,
    greedy,
    in_turn,
    loaded,
    lockstep,
    random_prompts,
    read_texts,
    samples,
    tail,
    timed_run,
    wall_tps,
)
from app.bench.loops import native_loop
from app.bench.options import BenchOptions
from app.bench.server import LlamaServer
from app.figures import aligned
from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.planner.measure import TURN_TOKENS
from runtimes.request import Completion
from runtimes.settings import STRATEGIES, RunnerSettings, SchedulerSettings, Strategy

# Lengths of prompts that share a prefix.
_SYSTEM_TOKENS = 500
_QUESTION_TOKENS = 16

NEAR_TIE = 0.02  # natural-log probability between the two likeliest tokens
_REFERENCE: Strategy = "sequential"

_Ran = tuple[float, list[Completion]]  # seconds, and the completions in the order of the requests


def _seconds(ran: _Ran) -> float:
    return ran[0]


def prefix(path: Path, options: BenchOptions) -> BenchResult:
    """Many prompts behind one system prompt, another one each round: time to all first tokens,
    prefix cache on and off."""
    requests, each = options.requests, _SYSTEM_TOKENS + _QUESTION_TOKENS
    settings, lengths = options.settings(each + 1), (_SYSTEM_TOKENS, _QUESTION_TOKENS, 1)
    kinds = {"with the prefix cache": UNBOUNDED, "without": TOGETHER}
    sides = {
        name: partial(_behind_one, path, settings, one, lengths, requests)
        for name, one in kinds.items()
    }
    taken = in_turn(sides, options.repeats)
    seconds = samples(taken, _seconds)
    on, off = seconds.values()
    cached = Samples(map(_cached, taken["with the prefix cache"]))
    figures = {
        "requests": requests,
        "prompt_tokens": requests * each,
        "cached_tokens": cached,
        "seconds_on": on,
        "seconds_off": off,
        "ratio": off.median / on.median,
    }
    title = f"{requests} prompts behind {_SYSTEM_TOKENS} common tokens: seconds to all first tokens"
    lines = compared(title, seconds, ".2f")
    lines.append(f"  {cached:,.0f} of {requests * each:,} tokens were cached")
    return BenchResult(figures, lines)


def prefix_at_depths(path: Path, options: BenchOptions) -> BenchResult:
    """Short rows behind a long prompt, another one each round: seconds of the whole job by the
    length of the prompt and the number of slots."""
    tokens, requests = options.decode_tokens, options.requests
    counts, cells = options.sizes or (1, 8, 16), []
    table = [["common tokens", *(f"{n} slot{'s' if n > 1 else ''}" for n in counts)]]
    for depth in options.depths or ():
        table.append([f"{depth:,}"])
        for slots in counts:
            lengths = (depth, TURN_TOKENS, tokens)
            settings = options.settings(sum(lengths) + 1, rows=slots)
            job = partial(_behind_one, path, settings, UNBOUNDED, lengths, requests)
            taken = [job(seed) for seed in range(options.repeats)]
            seconds, cached = Samples(map(_seconds, taken)), Samples(map(_cached, taken))
            cells.append(
                {"depth": depth, "slots": slots, "seconds": seconds, "cached_tokens": cached}
            )
            share = cached.median / (requests * (depth + TURN_TOKENS))
            table[-1].append(f"{seconds:.2f} s ({share:.1%} cached)")
    title = f"{requests} rows of {TURN_TOKENS} + {tokens} tokens behind a common text, all together"
    return BenchResult({"requests": requests, "jobs": cells}, [title, *aligned(table)])


def _behind_one(
    path: Path,
    settings: RunnerSettings,
    scheduling: SchedulerSettings,
    lengths: tuple[int, int, int],
    requests: int,
    seed: int,
) -> _Ran:
    """``requests`` at once; ``lengths`` of what they share, of each one's own, and of answers."""
    shared, own, tokens = lengths
    with loaded(path, settings, scheduling, worker=True) as engine:
        past, *rows = random_prompts(engine, [shared, *[own] * requests], seed)
        return timed_run(engine, [past + row for row in rows], [greedy(tokens)] * requests)


def _cached(ran: _Ran) -> int:
    return sum(one.usage.cached_tokens for one in ran[1])


class _Job:
    """Requests of half to one and a half times the usual sizes, equal in every run."""

    def __init__(self, path: Path, options: BenchOptions) -> None:
        dice = random.Random(options.requests)
        self._path = path
        self._tokens = [about(options.decode_tokens, dice) for _ in range(options.requests)]
        self._lengths = [about(options.prompt_tokens, dice) for _ in range(options.requests)]
        pairs = zip(self._lengths, self._tokens, strict=True)
        self.settings = options.settings(max(map(sum, pairs)) + 1)
        self.title = (
            f"{options.requests} requests, {sum(self._lengths):,} prompt and "
            f"{sum(self._tokens):,} generated tokens, {options.rows} slots: generated tok/s"
        )

    def run(
        self,
        settings: RunnerSettings,
        scheduling: SchedulerSettings,
        *,
        shuffle: int | None = None,
        top_logprobs: int = 0,
    ) -> _Ran:
        """``shuffle`` is the seed of another order in which they are submitted."""
        order = list(range(len(self._tokens)))
        if shuffle is not None:
            random.Random(shuffle).shuffle(order)
        with loaded(self._path, settings, scheduling) as engine:
            prompts = random_prompts(engine, self._lengths, len(order))
            params = [greedy(self._tokens[i], top_logprobs=top_logprobs) for i in order]
            seconds, done = timed_run(engine, [prompts[i] for i in order], params)
        answers = dict(zip(order, done, strict=True))
        return seconds, [answers[i] for i in sorted(answers)]

    def speeds(self, taken: Mapping[Side, Sequence[_Ran]]) -> dict[Side, Samples]:
        """Generated tokens a second of all the time, prefill included, of each side."""
        return samples(taken, lambda ran: sum(self._tokens) / ran[0])


@dataclass(frozen=True, slots=True)
class AnswerParting:
    """The first place where an answer has another token. ``gap`` is the reference's
    log-probability between its two likeliest tokens there."""

    answer: int
    token: int
    gap: float


@dataclass(frozen=True, slots=True)
class JobAgreement:
    """Greedy answers against those of one row at a time."""

    answers: int
    partings: tuple[AnswerParting, ...]

    @property
    def near_ties(self) -> list[float]:
        """The gaps of those that part at a near-tie."""
        return [one.gap for one in self.partings if one.gap <= NEAR_TIE]

    @property
    def others(self) -> list[float]:
        """The gaps of all others that part."""
        return [one.gap for one in self.partings if one.gap > NEAR_TIE]

    @property
    def equal(self) -> int:
        """Answers that are the same to the last token."""
        return self.answers - len(self.partings)


def strategies(path: Path, options: BenchOptions) -> BenchResult:
    """Every batching strategy in turn, after an untimed reference run: speed, and whether the
    answers are the same."""
    job = _Job(path, options)

    def side(strategy: Strategy, _: int, top_logprobs: int = 0) -> _Ran:
        scheduling = replace(UNBOUNDED, strategy=strategy)
        return job.run(job.settings, scheduling, top_logprobs=top_logprobs)

    _, reference = side(_REFERENCE, 0, top_logprobs=2)
    taken = in_turn({name: partial(side, name) for name in STRATEGIES}, options.repeats)
    tps = job.speeds(taken)
    figures: Figures = {}
    lines = compared(job.title, tps)
    for name, runs in taken.items():
        same = compare(reference * len(runs), [answer for _, done in runs for answer in done])
        figures[name] = {
            "tps": tps[name],
            "ratio_to_sequential": (tps[name] / tps[_REFERENCE]).median,
            "answers_equal": same.equal,
            "answers_apart_at_a_near_tie": same.near_ties,
            "answers_apart_otherwise": same.others,
        }
        lines.append(
            f"  {name}: of {same.answers} answers {same.equal} equal, {len(same.near_ties)} apart"
            f" at a near-tie (within {NEAR_TIE}), {len(same.others)} apart otherwise"
        )
    return BenchResult({"strategies": figures}, lines)


def compare(reference: Sequence[Completion], done: Sequence[Completion]) -> JobAgreement:
    """``reference`` has the two likeliest tokens of every position."""
    partings = []
    for answer, (left, right) in enumerate(zip(reference, done, strict=True)):
        pairs = enumerate(zip(left.token_ids, right.token_ids, strict=True))
        first = next((i for i, (a, b) in pairs if a != b), None)
        if first is None:
            continue
        assert left.top_logprobs is not None
        likeliest, second = sorted(left.top_logprobs[first].values(), reverse=True)[:2]
        partings.append(AnswerParting(answer, first, likeliest - second))
    return JobAgreement(len(reference), tuple(partings))


def reproducible(path: Path, options: BenchOptions) -> BenchResult:
    """Cost of reproducible answers. The order of requests changes every round; answers that are
    not those of the first round are counted."""
    job = _Job(path, options)

    def side(kind: bool, seed: int) -> _Ran:
        return job.run(replace(job.settings, reproducible=kind), UNBOUNDED, shuffle=seed)

    kinds = {"usual": False, "reproducible": True}
    sides = {name: partial(side, kind) for name, kind in kinds.items()}
    taken = in_turn(sides, options.repeats, warm_up=True)
    tps = job.speeds(taken)
    cost = 1 - (tps["reproducible"] / tps["usual"]).median
    figures: Figures = {"cost": cost}
    lines = [*compared(job.title, tps), f"  it costs {cost:.1%} of the tokens a second"]
    for name, runs in taken.items():
        first, *later = ([one.token_ids for one in done] for _, done in runs)
        pairs = [pair for answers in later for pair in zip(first, answers, strict=True)]
        differing = sum(a != b for a, b in pairs)
        figures[name] = {"tps": tps[name].median, "answers_differing": differing}
        lines.append(f"  {name}: of {len(pairs)} answers again {differing} were others")
    return BenchResult(figures, lines)


# `ingot batch` against rows in lockstep, a loop over `llama_cpp.Llama`, and `llama-server`.

_WORDS = (
    "river stone window paper garden music winter letter engine number silver forest bridge "
    "morning answer question market island colour summer kitchen doctor shadow village machine"
).split()
_Side = tuple[float, float]  # seconds for all rows, and decoded tokens a second


def batch_job(path: Path, options: BenchOptions) -> BenchResult:
    """Every side in turn, with the same token ids on the same threads, and as many tokens made of
    each row. Ratios are those of the rounds; above 1, the command is faster: tokens a second of
    decode steps against lockstep, else seconds for all rows. Loading is not counted."""
    texts, tokens = _texts(options), options.decode_tokens
    with loaded(path, options.settings(8, rows=1)) as engine:
        prompts = [engine.encode(text) for text in texts]
    settings = options.settings(max(map(len, prompts)) + tokens + 1)
    prompt_tokens = sum(map(len, prompts))

    def in_lockstep(_: int) -> _Side:
        """Decode as many rows as there are slots, with prompts of the mean length."""
        mean = round(prompt_tokens / len(prompts))
        together = [(prompt * mean)[:mean] for prompt in prompts[: settings.slots]]
        with loaded(path, settings, TOGETHER) as engine:
            window = lockstep(engine, together, tokens)
        return window.wall_s, wall_tps(window)

    def llama_loop(_: int) -> _Side:
        """Answer one row after another."""
        numbers = (settings.threads or 1, settings.context or 0, settings.batch)
        with native_loop("llama_cpp.Llama", path, *numbers) as loop:
            loop([[7] * 8], 3)
            return loop(prompts, tokens), 0.0

    def llama_server(program: Path, _: int) -> _Side:
        """Send two requests a slot at a time."""
        with LlamaServer(program, path, settings) as server:
            return server.seconds(prompts, tokens), 0.0

    sides: dict[str, Callable[[int], _Side]] = {
        "batch": lambda _: _batch(path, settings, texts, tokens),
        "lockstep": in_lockstep,
    }
    if path.suffix == ".gguf":
        sides["llama_loop"] = llama_loop
        if options.llama_server is not None:
            sides["llama_server"] = partial(llama_server, options.llama_server)
    taken = in_turn(sides, options.repeats)
    seconds = samples(taken, lambda side: side[0])
    decode = {side: Samples(tps for _, tps in taken[side]) for side in ("batch", "lockstep")}
    ratios = {"of_lockstep": decode["batch"] / decode["lockstep"]}
    others = [side for side in sides if side not in decode]
    ratios |= {f"of_{side}": seconds[side] / seconds["batch"] for side in others}
    figures = {
        "rows": len(prompts),
        "decode_tokens": tokens,
        "batch_seconds": seconds["batch"],
        "batch_decode_tps": decode["batch"],
        "lockstep_decode_tps": decode["lockstep"],
        "llama_loop_seconds": seconds.get("llama_loop", []),
        "llama_server_seconds": seconds.get("llama_server", []),
        "ratios": ratios,
    }
    title = (
        f"{len(prompts)} rows, {prompt_tokens} prompt tokens in all, {tokens} generated for each,"
        f" {settings.slots} slots, {settings.threads} threads: "
    )
    lines = compared(f"{title}tok/s of decode steps", decode)
    if others:
        whole = {side: seconds[side] for side in ("batch", *others)}
        lines += compared("seconds from the first row to the last", whole)
    return BenchResult(figures, lines)


def _batch(path: Path, settings: RunnerSettings, texts: Sequence[str], tokens: int) -> _Side:
    """The command as a user types it, on OpenAI completion requests: they can ignore the end. The
    time is that of its report, from the first row to the last; the speed that of decode steps."""
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        rows, report = Path(folder) / "rows.jsonl", Path(folder) / "report.json"
        with rows.open("w", encoding="utf-8") as file:
            for number, text in enumerate(texts):
                body = {"prompt": text, "max_tokens": tokens, "ignore_eos": True}
                row = {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions"}
                file.write(json.dumps({**row, "body": body}) + "\n")
        command: list[object] = ["-m", "app", "batch", rows, Path(folder) / "out.jsonl"]
        command += ["--model", path, "--report", report, "--quiet", "--split-kv"]
        command += ["--slots", settings.slots, "--context", settings.context]
        command += ["--threads", settings.threads, "--profile", "throughput"]
        done = processes.run(*command, capture_output=True)
        if done.returncode != 0:
            raise IngotError(f"ingot batch failed:\n{tail(done.stderr)}")
        summary = json.loads(report.read_text())["summary"]
    made, wanted = summary["completion_tokens"], len(texts) * tokens
    if made != wanted:
        raise IngotError(f"the batch made {made} tokens instead of {wanted}")
    return summary["run_s"], summary["decode_tps"]


def _texts(options: BenchOptions) -> list[str]:
    if options.prompts is not None:
        return read_texts(options.prompts)
    dice = random.Random(options.requests)
    words = max(1, options.prompt_tokens // 2)
    return [" ".join(dice.choices(_WORDS, k=words)) for _ in range(options.requests)]
