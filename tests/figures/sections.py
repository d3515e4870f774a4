"""Commands that `make figures` runs, and the tables that their JSON becomes.

A section runs one command as often as it has rounds, and the rounds of all sections take turns, so
that the scatter has what an hour changes, too. Nothing here holds a figure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.figures.tables import Peer, Table, Value

TOOLS = {
    "llama-server": "--llama-server",
    "llama-batched-bench": "--batched-bench",
    "llama-bench": "--llama-bench",
}
Output = Any  # what a command printed as JSON
Made = tuple[Table, list[Peer]]


@dataclass(frozen=True)
class Section:
    """``words``: the command, in which {big}, {small} and {pebble} are models, {NAME} a tool and
    {picture} that of a sweep. ``made`` makes the table of the outputs of its rounds; ``minutes``
    are those of one round on two cores.
    """

    name: str
    words: str
    made: Callable[[list[Output]], Made]
    title: str
    rounds: int = 2
    minutes: float = 1.0
    peers: tuple[str, ...] = ()  # of a sweep, the others that are left out where they are not here

    @property
    def tools(self) -> list[str]:
        """Programs without which the section cannot run."""
        return [name for name in TOOLS if f"{{{name}}}" in self.words]


def tools() -> dict[str, Path]:
    """The programs named in FIGURES_PEERS (files or folders, as PATH has them), or on PATH."""
    named = [Path(part) for part in os.environ.get("FIGURES_PEERS", "").split(os.pathsep) if part]
    found = {}
    for name in TOOLS:
        places = [path / name if path.is_dir() else path for path in named]
        here = [path.resolve() for path in places if path.name == name and path.is_file()]
        there = shutil.which(name)
        if here or there:
            found[name] = here[0] if here else Path(str(there)).resolve()
    return found


def libraries() -> dict[str, bool]:
    """Which of the libraries that sweeps compare with are here."""
    names = ("openvino-genai", "llama-cpp-python", "onnxruntime-genai")
    modules = ("openvino_genai", "llama_cpp", "onnxruntime_genai")
    return {
        name: find_spec(module) is not None for name, module in zip(names, modules, strict=True)
    }


# From outputs to samples.


def taken(outputs: Iterable[Output], *path: str | int) -> tuple[float, ...]:
    """The number at ``path`` in each output, or all of a list of numbers there."""
    found: list[float] = []
    for value in outputs:
        for step in path:
            value = value[step]
        found += value if isinstance(value, list) else [value]
    return tuple(map(float, found))


def speeds(outputs: list[Output], *path: str | int) -> Value:
    return Value(taken(outputs, *path))


def share(outputs: list[Output], *path: str | int, less: float = 0.0, times: float = 1.0) -> Value:
    return Value(tuple(times * one - less for one in taken(outputs, *path)), share=True)


def ratio(outputs: list[Output], *path: str | int) -> Value:
    return Value(taken(outputs, *path), ".2f")


def per_second(amount: float, seconds: Value) -> Value:
    return Value(tuple(amount / one for one in seconds.samples))


def short(file: str) -> str:
    """A file's recipe, as far as its name tells it."""
    name = file.removesuffix(".gguf")
    return name if name.startswith("onnx") else name.rpartition("-")[2]


def rows_of(number: int | str) -> str:
    return f"{number} row{'s' * (str(number) != '1')}"


def quality(outputs: list[Output]) -> Made:
    """What `quantize` measured of each file (its manifest)."""
    original, files = outputs[0]["model"], outputs[0]["files"]
    head = "file|MB|same tokens|accuracy|perplexity|KL mean|same top|prefill|decode|16 rows|peak MB"
    graded = original["quality"]
    rows: list[list[str | Value]] = []
    text = original["perplexity"]
    first = [
        f"{original['bytes'] / 1e6:.1f}",
        "",
        f"{graded['task_accuracy']:.1%}" if graded else "",
    ]
    rows.append(["original, float", *first, f"{text['value']:,.2f}", *[""] * 6])
    for number, file in enumerate(files):
        lines = file["token_parity"]["lines"]
        same = f"{lines - file['token_parity']['differences']}/{lines}"
        fidelity, laps = file["fidelity"], file["speed"]["ranges"]
        own: list[str | Value] = [f"`{file['path']}`", f"{file['bytes'] / 1e6:.1f}", same]
        at = ("files", number)
        accuracy = share(outputs, *at, "quality", "task_accuracy") if graded else ""
        kl, same_top = fidelity["kl_mean"], share(outputs, *at, "fidelity", "same_top")
        own += [accuracy, Value(taken(outputs, *at, "fidelity", "perplexity", "value"), ",.2f")]
        own += [Value((kl,), ".2g" if kl < 0.001 else ".4f"), same_top]
        for name in ("prefill_tps", "decode_tps_1", "decode_tps_16"):
            ranges = tuple(laps[name]) if name in laps else None
            own.append(Value(taken(outputs, *at, "speed", name), ranges=ranges))
        peak = Value(taken(outputs, *at, "speed", "peak_bytes"))
        rows.append([*own, f"{peak.median / 1e6:,.0f}"])
    names = head.split("|")
    left = names.index("perplexity" if graded else "accuracy")
    kept = [[*row[:left], *row[left + 1 :]] for row in (names, *rows)]
    return Table([str(name) for name in kept[0]], kept[1:]), []


def by_depth(outputs: list[Output]) -> Made:
    """`speed`: every file behind every depth."""
    first = outputs[0]
    counts = list(first[0]["decode_tps"])
    head = ["file", "MB", "behind", "prefill", "turn of 40", *map(rows_of, counts)]
    head.append(f"{counts[-1]} : {counts[0]}")
    rows = []
    for number, one in enumerate(first):
        decode = [speeds(outputs, number, "decode_tps", count) for count in counts]
        gain = ratio(outputs, number, "decode_ratio", counts[-1])
        size, behind = f"{one['bytes'] / 1e6:,.1f}", f"{one['depth']:,}"
        both = [speeds(outputs, number, name) for name in ("prefill_tps", "turn_tps")]
        cache = "" if one["kv_type"] == "f16" else f", {one['kv_type']} cache"
        rows.append([short(one["file"]) + cache, size, behind, *both, *decode, gain])
    return Table(head, rows), []


def behind_texts(outputs: list[Output]) -> Made:
    """`native` and `server` with --depth: sides by depth and work."""
    cells = outputs[0][0]["speeds"]
    sides = list(cells[0]["tps"])
    rows, peers = [], []
    for number, cell in enumerate(cells):
        at = (0, "speeds", number)
        each = {side: speeds(outputs, *at, "tps", side) for side in sides}
        depth, work = f"{cell['depth']:,}", cell["work"]
        rows.append([depth, work, *each.values(), ratio(outputs, *at, "ratio")])
        ours = each[sides[0]]
        best = max(sides[1:], key=lambda side: each[side].median)
        what = f"{work} behind {depth} tokens, {short(outputs[0][0]['file'])}"
        name = best if sides[0] == "ingot" else f"{best} (`{sides[0]}`)"
        peers.append(Peer.of(what, name, ours, each[best]))
    return Table(["behind", "work", *sides, "to the better one"], rows), peers


_SIDES = (
    *("ingot", "ingot-serve", "llama-server", "llama-batched-bench", "llama-cpp-python"),
    *("onnxruntime-genai", "openvino-genai"),
)


def sweep(outputs: list[Output]) -> Made:
    """`--sweep`: numbers of rows by files, or by the sides on one file."""
    found: dict[tuple[str, str, int], list[float]] = {}
    problems = {}
    for output in outputs:
        for one in output["measured"]:
            cell = one["cell"]
            if cell["prompt"] == 512 and cell["answer"] == 1:
                continue
            if one["problem"]:
                problems[cell["side"], cell["file"]] = one["problem"]
            else:
                key = (cell["file"], cell["side"], cell["rows"])
                found.setdefault(key, []).append(one["tps"])
    files = list(dict.fromkeys(file for file, _, _ in found))
    sides = sorted(dict.fromkeys(side for _, side, _ in found), key=_SIDES.index)
    columns = [
        (file, side)
        for file in files
        for side in sides
        if any(key[:2] == (file, side) for key in found)
    ]
    counts = sorted({count for _, _, count in found})
    rows: list[list[str | Value]] = []
    peers = []
    for count in counts:
        row: list[str | Value] = [str(count)]
        for file, side in columns:
            value = found.get((file, side, count))
            row.append(Value(tuple(value)) if value else "")
            if value and not side.startswith("ingot"):
                work = f"{rows_of(count)}, {short(file)}, prefill included"
                ours = Value(tuple(found[file, "ingot", count]))
                peers.append(Peer.of(work, side, ours, Value(tuple(value))))
        rows.append(row)
    gains: list[str | Value] = ["best : 1 row"]
    for file, side in columns:
        alone = found.get((file, side, 1))
        many = [found[file, side, count] for count in counts if (file, side, count) in found]
        best = max(many, key=lambda each: sum(each) / len(each))
        pairs = zip(best, alone or (), strict=False)
        gain = tuple(a / b for a, b in pairs)
        gains.append(Value(gain, ".2f") if gain else "")
    several = len(sides) > 1
    head = [
        "rows",
        *(
            side
            if several and len(files) == 1
            else short(file)
            if not several
            else f"{short(file)}, {side}"
            for file, side in columns
        ),
    ]
    notes = [f"{side} on {short(file)} failed: {why}" for (side, file), why in problems.items()]
    return Table(head, [*rows, gains], notes), peers


def lockstep(outputs: list[Output]) -> Made:
    """`native`: 16 rows against llama-batched-bench, each cache layout of both."""
    one = outputs[0][0]
    rows, peers = [], []
    for layout in one["ingot"]:
        ours = speeds(outputs, 0, "ingot", layout, "decode_tps")
        theirs = speeds(outputs, 0, "llama_batched_bench", layout)
        peer = Peer.of(
            f"{one['rows']} rows in lockstep, {layout} cache, {short(one['file'])}",
            "llama-batched-bench", ours, theirs,
        )  # fmt: skip
        peers.append(peer)
        outside = share(outputs, 0, "ingot", layout, "host_share")
        rows.append([layout, ours, theirs, peer.ratio, outside])
    head = ["cache", "Ingot", "llama-batched-bench", "ratio", "of a step outside llama.cpp"]
    return Table(head, rows), peers


def end_to_end(outputs: list[Output]) -> Made:
    """`server`: the engine alone, `ingot serve` and llama-server on the same prompts."""
    one = outputs[0][0]
    made = one["completion_tokens"]
    sides = {
        "the engine alone": ("ingot_seconds", "split"),
        "`ingot serve`": ("ingot_serve_seconds",),
        "llama-server": ("llama_server_seconds",),
    }
    tps = {name: per_second(made, speeds(outputs, 0, *path)) for name, path in sides.items()}
    theirs = tps["llama-server"]
    work = f"{one['requests']} requests over HTTP, {short(one['file'])}"
    peers = [Peer.of(work, "llama-server", tps["`ingot serve`"], theirs)]
    rows = [[name, value, Peer.of("", "", value, theirs).ratio] for name, value in tps.items()]
    return Table(["side", "generated tok/s", "to llama-server"], rows), peers


def random_arrivals(outputs: list[Output]) -> Made:
    """`churn`: rows that come and go against rows in lockstep."""
    rows = []
    for layout, sides in outputs[0][0]["layouts"].items():
        for side in sides:
            if side != "lockstep":
                at = (0, "layouts", layout, side)
                both = [ratio(outputs, *at, n) for n in ("ratio_of_steps", "ratio_end_to_end")]
                rows.append([layout, side, *both])
    return Table(["cache", "prompts", "of decode steps", "end to end"], rows), []


def beside_genai(outputs: list[Output]) -> Made:
    """`genai`: one row against onnxruntime-genai."""
    ours = speeds(outputs, 0, "decode_tps_1_row")
    rows, peers = [], []
    names = {
        "with as many threads": "onnxruntime_genai_decode_tps",
        "as it loads the folder": "onnxruntime_genai_untold_decode_tps",
    }
    for name, key in names.items():
        work = f"1 row, {short(outputs[0][0]['file'])}, decode"
        peer = Peer.of(work, f"onnxruntime-genai {name}", ours, speeds(outputs, 0, key))
        peers.append(peer)
        rows.append([name, ours, peer.theirs, peer.ratio])
    growth = max(taken(outputs, 0, "memory_growth_bytes")) / 1e6
    steps = outputs[0][0]["memory_steps"]
    notes = [f"Resident memory over {steps:,} decode steps of 16 rows: {growth:+.2f} MB at most."]
    return Table(["onnxruntime-genai", "Ingot, tok/s", "it, tok/s", "ratio"], rows, notes), peers


def jobs(outputs: list[Output]) -> Made:
    """`batch`: the command against lockstep, a loop and llama-server."""
    one = outputs[0][0]
    tokens = one["rows"] * one["decode_tokens"]
    ours = per_second(tokens, speeds(outputs, 0, "batch_seconds"))
    lock = speeds(outputs, 0, "lockstep_decode_tps")
    decode = speeds(outputs, 0, "batch_decode_tps")
    gain = ratio(outputs, 0, "ratios", "of_lockstep")
    rows = [["the engine in lockstep, decode steps", decode, lock, gain]]
    peers = []
    names = {"llama_loop": "`llama_cpp.Llama`, row after row", "llama_server": "llama-server"}
    for key, name in names.items():
        if one[f"{key}_seconds"]:
            theirs = per_second(tokens, speeds(outputs, 0, f"{key}_seconds"))
            work = f"a job of {one['rows']} rows, {short(one['file'])}"
            peers.append(Peer.of(work, name, ours, theirs))
            rows.append([f"{name}, end to end", ours, theirs, peers[-1].ratio])
    return Table(["beside", "`ingot batch`, tok/s", "the other, tok/s", "ratio"], rows), peers


def common_prefix(outputs: list[Output]) -> Made:
    """`prefix`: the prefix cache on and off."""
    one = outputs[0][0]
    on, off = (speeds(outputs, 0, f"seconds_{name}") for name in ("on", "off"))
    gain = Peer.of("", "", off, on).ratio
    cached = share(outputs, 0, "cached_tokens", times=1 / one["prompt_tokens"])
    head = ["requests", "with the cache (s)", "without (s)", "times faster", "tokens cached"]
    return Table(head, [[str(one["requests"]), on, off, gain, cached]]), []


def exact(outputs: list[Output]) -> Made:
    """`reproducible`: tokens a second with and without, by file."""
    rows = []
    for number, one in enumerate(outputs[0]):
        usual, same = (speeds(outputs, number, k, "tps") for k in ("usual", "reproducible"))
        rows.append([short(one["file"]), usual, same, share(outputs, number, "cost")])
    return Table(["file", "usual tok/s", "`--reproducible` tok/s", "cost"], rows), []


def sampling(outputs: list[Output]) -> Made:
    """`sampling`: shares of a decode step."""
    one = outputs[0][0]
    names = ("share", "flat_share")
    rows = [
        [kind, *(share(outputs, 0, "sampling", kind, name) for name in names)]
        for kind in one["sampling"]
    ]
    return Table(["sampling", "of a step", "flat logits"], rows), []


def constrained(outputs: list[Output]) -> Made:
    """`constrained`: rows free and within a JSON schema."""
    free, held = (speeds(outputs, 0, f"{k}_tps") for k in ("free", "constrained"))
    what = f"{outputs[0][0]['rows']} rows within a JSON schema"
    return Table(_COST, [[what, free, held, share(outputs, 0, "cost")]]), []


_COST = ["work", "without, tok/s", "with, tok/s", "cost"]


def through_worker(outputs: list[Output]) -> Made:
    """`worker`: the engine in a process of its own."""
    rows: list[list[str | Value]] = []
    for count in outputs[0][0]["rows"]:
        at = (0, "rows", count)
        both = [speeds(outputs, *at, f"{side}_tps") for side in ("here", "worker")]
        cost = share(outputs, *at, "tps_ratio", less=-1.0, times=-1.0)
        rows.append([f"{rows_of(count)} through the worker process", *both, cost])
    return Table(_COST, rows), []


def regret(outputs: list[Output]) -> Made:
    """`plan`: what the planner's choice is behind the best of a sweep."""
    rows = [
        [kind, share(outputs, 0, "workloads", number, "regret")]
        for number, kind in enumerate(one["workload"] for one in outputs[0][0]["workloads"])
    ]
    return Table(["workload", "behind the best setting"], rows), []


def guesses(outputs: list[Output]) -> Made:
    """`speculation`: with against without, by work."""
    one = outputs[0][0]
    rows = []
    for name, found in one.items():
        if isinstance(found, dict):
            equal = f"{found['equal_answers']} of {found['answers']}"
            rows.append([name, found["unit"], ratio(outputs, 0, name, "ratio"), equal])
    return Table(["work", "of", "with : without", "answers equal"], rows), []


def many_adapters(outputs: list[Output]) -> Made:
    """`adapters`: rows dealt out to adapters against rows without."""
    one = outputs[0][0]
    rows = []
    for count in one["ratio"]:
        what = f"{one['rows']} rows, {count} adapter{'s' * (count != '1')}"
        rows.append([what, ratio(outputs, 0, "ratio", count)])
    what = f"{one['job']['requests']} requests, {count} adapters"
    rows.append([what, ratio(outputs, 0, "job", "ratio")])
    return Table(["work", "of the speed without"], rows), []


def memory(outputs: list[Output]) -> Made:
    """`memory`: the estimate against what a process takes."""
    rows: list[list[str | Value]] = []
    for number, file in enumerate(outputs[0]):
        settings = [entry for output in outputs for entry in output[number]["settings"]]
        errors = taken(settings, "error")
        off = f"{min(errors):+.1%} to {max(errors):+.1%}"
        rows.append([short(file["file"]), str(len(file["settings"])), off])
    return Table(["file", "settings", "estimate off by"], rows), []


def screen(outputs: list[Output]) -> Made:
    """`tui`: the terminal app."""
    one = outputs[0][0]
    rows: list[list[str | Value]] = []
    for number, stream in enumerate(one["streams"]):
        at = (0, "streams", number)
        kind = f"a stream of 200 tok/s into {stream['kind']}"
        rows.append([f"{kind}: 95% of the keys within (ms)", speeds(outputs, *at, "key_p95_ms")])
        rows.append([f"{kind}: of a core", share(outputs, *at, "core_share")])
        rows.append([f"{kind}: words lost", str(stream["words_lost"])])
    count = one["long_chat"]["messages"]
    rows.append(
        [f"a chat of {count:,} messages opens (s)", speeds(outputs, 0, "long_chat", "open_s")]
    )
    rows.append(["first paint (s)", speeds(outputs, 0, "openings", "first_paint_s")])
    pairs = [pair for output in outputs for pair in output[0]["decode_tps"]]
    cost = Value(tuple(1 - pair["app"] / pair["run"] for pair in pairs), share=True)
    rows.append(["decode in the app slower than in `ingot run`", cost])
    return Table(["of the terminal app", "figure"], rows), []


_PEERS = ("ingot-serve", "llama-server", "llama-batched-bench", "openvino-genai")

SECTIONS = {
    one.name: one
    for one in (
        Section("quality-pebble", "quantize assets/pebble", quality, "Pebble", 1, 1.5),
        Section(
            "quality-smollm2", 'quantize "$(python -m tests.real.smollm2)" --out {small}',
            quality, "SmolLM2-135M-Instruct", 1, 4,
        ),
        Section(
            "peers",
            "ingot bench {big} --recipe q4_0 --sweep --batch-sizes 1,8,32 --lengths 16+48",
            sweep, "the 0.5 B shape in Q4_0, prompts of 16 tokens and answers of 48", 2, 2.7,
            peers=_PEERS,
        ),
        Section(
            "rows",
            "ingot bench {big} --sweep --batch-sizes 1,8,32 --lengths 16+48 --output {picture}",
            sweep, "the 0.5 B shape, prompts of 16 tokens and answers of 48", 2, 2.0,
        ),
        Section(
            "depths",
            "ingot bench {big} --depth 0,2048 --batch-sizes 1,8 --prompt-tokens 256 --repeats 1"
            " --kv-types f16,bf16",
            by_depth, "the 0.5 B shape, a prefill of 256 tokens", 2, 2.3,
        ),
        Section(
            "native-depths",
            "ingot bench {big} --recipe q4_0 --what native --depth 128,2048 --prompt-tokens 512"
            " --repeats 1 --llama-bench {llama-bench} --batched-bench {llama-batched-bench}",
            behind_texts, "the 0.5 B shape in Q4_0, a prefill of 512 tokens", 2, 1.8,
        ),
        Section(
            "server-depths",
            "ingot bench {small} --recipe q4_k_m --what server --depth 2048 --prompt-tokens 512"
            " --repeats 1 --llama-server {llama-server}",
            behind_texts, "SmolLM2-135M in Q4_K_M by what a client waits for", 2, 0.8,
        ),
        Section(
            "native",
            "ingot bench {small} --recipe q8_0 --what native --prompt-tokens 16 --decode-tokens 48"
            " --repeats 2 --batched-bench {llama-batched-bench}",
            lockstep, "SmolLM2-135M in Q8_0, 16 rows in lockstep", 2, 0.6,
        ),
        Section(
            "server",
            "ingot bench {small} --recipe q8_0 --what server --requests 48 --decode-tokens 32"
            " --repeats 1 --llama-server {llama-server}",
            end_to_end, "SmolLM2-135M in Q8_0, 48 requests, 32 clients, 16 slots", 2, 0.8,
        ),
        Section(
            "batch",
            "ingot bench {small} --recipe q8_0 --what batch --requests 48 --prompt-tokens 64"
            " --decode-tokens 32 --repeats 1 --llama-server {llama-server}",
            jobs, "SmolLM2-135M in Q8_0, 48 rows", 2, 0.9,
        ),
        Section(
            "genai",
            "ingot bench {small} --recipe onnx-int4 --what genai --prompt-tokens 16"
            " --decode-tokens 64 --steps 300 --repeats 2",
            beside_genai, "SmolLM2-135M in onnx-int4, 1 row", 2, 0.6,
        ),
        Section(
            "churn",
            "ingot bench {small} --recipe q4_k_m --what churn --decode-tokens 32 --repeats 1",
            random_arrivals, "SmolLM2-135M in Q4_K_M, requests at random against lockstep", 2, 0.5,
        ),
        Section(
            "prefix",
            "ingot bench {small} --recipe q8_0 --what prefix --requests 16 --repeats 1",
            common_prefix, "SmolLM2-135M in Q8_0, prompts behind 500 common tokens", 2, 0.5,
        ),
        Section(
            "reproducible",
            "ingot bench {small} --what reproducible --requests 16 --prompt-tokens 64"
            " --decode-tokens 48 --repeats 1",
            exact, "SmolLM2-135M, 16 requests", 2, 1.0,
        ),
        Section(
            "sampling", "ingot bench {big} --recipe q4_0 --what sampling --repeats 8",
            sampling, "the 0.5 B shape in Q4_0, 16 rows of 151,936 tokens", 2, 0.4,
        ),
        Section(
            "constrained",
            "ingot bench {small} --recipe q8_0 --what constrained --prompt-tokens 16"
            " --decode-tokens 24 --repeats 2",
            constrained, "SmolLM2-135M in Q8_0", 2, 0.3,
        ),
        Section(
            "worker",
            "ingot bench {small} --recipe q8_0 --what worker --decode-tokens 48 --repeats 3",
            through_worker, "SmolLM2-135M in Q8_0", 2, 0.4,
        ),
        Section(
            "plan", "ingot bench {pebble} --what plan --repeats 2",
            regret, "Pebble, the planner against the best of a sweep", 2, 0.8,
        ),
        Section(
            "speculation",
            "ingot bench {small} --recipe q8_0 --what speculation --decode-tokens 48 --repeats 2",
            guesses, "SmolLM2-135M in Q8_0, with `--speculation` against without", 1, 2.0,
        ),
        Section(
            "adapters",
            "ingot bench {small} --recipe q8_0 --what adapters --prompt-tokens 32 --repeats 2",
            many_adapters, "SmolLM2-135M in Q8_0, LoRA adapters of rank 16", 1, 1.2,
        ),
        Section(
            "memory", "ingot bench {pebble} --what memory", memory, "Pebble", 1, 0.5,
        ),
        Section(
            "tui",
            "ingot bench {small} --recipe q4_k_m --what tui --decode-tokens 128 --repeats 2"
            " --seconds 10",
            screen, "SmolLM2-135M in Q4_K_M", 1, 1.7,
        ),
    )
}  # fmt: skip

# What a test runs in seconds: the same code on the smallest model there is.
QUICK = {
    one.name: one
    for one in (
        Section(
            "depths",
            "ingot bench {pebble} --depth 0,64 --batch-sizes 1,4 --prompt-tokens 32"
            " --decode-tokens 8 --repeats 1",
            by_depth, "Pebble", 2, 0.1,
        ),
        Section(
            "peers",
            "ingot bench {pebble} --recipe q8_0 --sweep --batch-sizes 1,4 --lengths 8+16"
            " --repeats 2",
            sweep, "Pebble in Q8_0", 1, 0.3, peers=("llama-cpp-python",),
        ),
        Section("plan", "ingot bench {pebble} --what plan --repeats 1", regret, "Pebble", 1, 0.5),
    )
}  # fmt: skip
