"""`ingot bench` with counts so small that only what holds at any speed is looked at."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.bench.estimates import SETTINGS
from app.bench.frame import (
    TOGETHER,
    Samples,
    bench_prompts,
    greedy,
    host_share,
    in_turn,
    loaded,
    lockstep,
    parse,
    random_prompts,
    read_texts,
    rounded,
    run,
)
from app.bench.itself import PARAMETERS, sampling
from app.bench.jobs import compare
from app.bench.loops import native_loop
from app.bench.options import BATCH, BenchOptions
from app.bench.suite import BENCHMARKS
from quantize.resolve import resolve
from runtimes.errors import IngotError, RequestError
from runtimes.planner.measure import prefill_tps
from runtimes.request import Completion, FinishReason, Timings, Usage
from runtimes.settings import SchedulerSettings

# One thread: threads that wait for each other crawl where the processor is shared.
TINY = BenchOptions(
    rows=3, prompt_tokens=6, decode_tokens=6, requests=4, repeats=1, steps=20, threads=1
)

# What llama-batched-bench and llama-server of llama-cpp-python 0.3.36's llama.cpp said on Pebble.
BATCHED_BENCH = """\

{"n_kv_max": 8192, "n_batch": 512, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, \
"n_gpu_layers": -1, "n_threads": 2, "n_threads_batch": 2, "pp": 128, "tg": 64, "pl": 16, \
"n_kv": 3072, "t_pp": 0.209263, "speed_pp": 9786.727539, "t_tg": 0.261132, \
"speed_tg": 3921.388428, "t": 0.470395, "speed": 6530.681641}

"""


def figures(value: Any) -> Iterator[float]:
    """Every number in a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from figures(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@pytest.fixture(scope="module")
def files(pebble_built: Path) -> Callable[[str], Path]:
    """The file of a recipe."""
    return partial(lambda folder, recipe: resolve(folder, recipe=recipe), pebble_built)


def figures_of(name: str, path: Path, **changes: Any) -> dict[str, Any]:
    """What a comparison finds, as JSON gives it."""
    result = BENCHMARKS[name].run(path, replace(TINY, **changes))
    assert result.lines
    found: dict[str, Any] = json.loads(json.dumps(result.figures))
    return found


def test_every_comparison_gives_json(command: Any, pebble_built: Path) -> None:
    names = ["churn", "prefix", "strategies", "sampling", "worker", "constrained", "batch"]
    names += ["reproducible"]
    arguments = ["--rows", "3", "--prompt-tokens", "6", "--decode-tokens", "6", "--threads", "1"]
    arguments += ["--requests", "4", "--repeats", "1", "--json", "--what", ",".join(names)]
    done = command("bench", pebble_built, "--recipe", "q8_0", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [entry["what"] for entry in report] == names
    for entry in report:
        assert entry["file"].endswith(".gguf")
        assert all(math.isfinite(figure) for figure in figures(entry))
    churned, prefixed, strategic, sampled, beside, held, job, same = report
    assert same["usual"]["tps"] > 0
    assert same["reproducible"]["tps"] > 0
    assert same["cost"] < 1
    assert held["constrained_tps"][0] > 0
    assert held["host_cost"] < 1
    assert set(job["ratios"]) == {"of_lockstep", "of_llama_loop"}
    assert job["rows"] == 4
    assert list(sampled["sampling"]) == list(PARAMETERS)
    assert all(cost["share"] > 0 for cost in sampled["sampling"].values())
    ratios = {rows: figure["tps_ratio"] > 0 for rows, figure in beside["rows"].items()}
    assert ratios == {"1": True, "3": True}
    assert set(churned["layouts"]) == {"split", "unified"}
    for layout in churned["layouts"].values():
        assert layout["lockstep"]["decode_tokens"] == [3 * 6]
        for bound in ("at once", "bounded"):
            assert layout[bound]["decode_tokens"][0] >= 3 * 6
            assert layout[bound]["ratio_of_steps"] > 0
    # All but the first prompt find the common tokens.
    assert prefixed["cached_tokens"] == [3 * 500]
    assert prefixed["ratio"] > 0
    for figure in strategic["strategies"].values():
        assert figure["tps"][0] > 0
        assert figure["answers_apart_otherwise"] == []
    assert strategic["strategies"]["sequential"]["ratio_to_sequential"] == 1


def test_an_engine_that_forgets_has_no_speed_at_a_depth(gguf_file: Path) -> None:
    with (
        loaded(gguf_file, TINY.settings(200), TOGETHER) as engine,  # without prefix cache
        pytest.raises(IngotError, match="computed 106 where 6 are new"),
    ):
        prefill_tps(engine, 6, 1, list(range(100)))


def test_the_table_of_speeds(command: Any, pebble_built: Path) -> None:
    """Depths that the context has no room for are left out, unless they were asked for."""
    arguments = ("--recipe", "q8_0", "--repeats", "1", "--threads", "1", "--prompt-tokens", "8")
    done = command("bench", pebble_built, *arguments, "--decode-tokens", "4")
    assert done.returncode == 0, done.stderr
    head, first, *more = done.stdout.splitlines()[1:]
    assert head.split()[:6] == ["file", "runtime", "MB", "depth", "prefill", "turn"]
    assert first.split()[3] == "0"
    assert more == []  # a context of 1,024
    done = command("bench", pebble_built, *arguments, "--depth", "0,1000")
    assert done.returncode == 2
    assert "--depth 1,000: pebble-q8_0.gguf has a context of 1,024 tokens" in done.stderr
    for option, value in (("--depth", "-1"), ("--depth", "1,x"), ("--batch-sizes", "0")):
        done = command("bench", pebble_built, option, value)
        assert (done.returncode, "numbers from" in done.stderr) == (2, True)
    done = command("bench", pebble_built, "--what", "native,churn", "--depth", "5")
    assert (done.returncode, "churn is not measured by depth" in done.stderr) == (2, True)
    done = command("bench", pebble_built, "--what", "native", "--kv-types", "bf16")
    assert (done.returncode, "native is not measured by type" in done.stderr) == (2, True)


def test_speed_by_type_of_the_cache(command: Any, pebble_built: Path) -> None:
    arguments = ["--depth", "0", "--batch-sizes", "1", "--prompt-tokens", "16", "--repeats", "1"]
    arguments += ["--decode-tokens", "4", "--recipe", "q8_0", "--kv-types", "f16,bf16", "--json"]
    done = command("bench", pebble_built, *arguments)
    assert [one["kv_type"] for one in json.loads(done.stdout)] == ["f16", "bf16"]


def test_many_rows_behind_one_prompt_by_its_length(files: Any) -> None:
    report = figures_of("prefix", files("q8_0"), depths=(50, 100), sizes=(1, 2))
    jobs = [(job["depth"], job["slots"]) for job in report["jobs"]]
    assert jobs == [(50, 1), (50, 2), (100, 1), (100, 2)]
    for job in report["jobs"]:
        assert job["seconds"][0] > 0
        assert job["cached_tokens"] == [3 * job["depth"]]  # of all but the first


def test_rows_of_several_adapters(files: Any) -> None:
    report = figures_of("adapters", files("onnx-int4"))
    assert report["base_tps"][0] > 0
    assert set(report["tps"]) == set(report["ratio"]) == {"1", "2"}  # of 3 rows
    assert all(samples[0] > 0 for samples in report["ratio"].values())
    assert report["job"]["requests"] == 12
    assert report["job"]["ratio"][0] > 0


def test_several_tokens_a_step(files: Any) -> None:
    draft = str(files("q4_k_m"))
    report = figures_of("speculation", files("q8_0"), rows=2, decode_tokens=3, draft=draft)
    layouts = ("split", "unified")
    together = {f"{kind}, 2 rows, {one}" for kind in ("prose", "chat", "code") for one in layouts}
    alone = {f"{kind}, 1 rows" for kind in ("JSON", "copy", "prose", "chat", "code")}
    assert report.keys() == {"decode_tokens", *alone, *together}
    assert report["JSON, 1 rows"]["forced_tokens"] > 0
    assert all(report[name]["ratio"][0] > 0 for name in alone | together)
    found = report["prose, 1 rows"]
    assert 0 <= found["accepted_drafts"] <= found["drafted_tokens"] <= found["proposed_tokens"]


def test_onnx_against_its_own_library(files: Any) -> None:
    report = figures_of("genai", files("onnx-int4"))
    assert report["ratio"] > 0
    assert 0 < report["host_share_1_row"][0] < 1
    assert report["memory_steps"] >= TINY.steps


def test_memory(files: Any) -> None:
    report = figures_of("memory", files("onnx-int4"))
    # The graph has no layouts or types of cache to choose from, and one kernel of attention.
    usual = {"kv_type": "f16", "unified_kv": False, "flash_attention": "auto"}
    assert len(report["settings"]) == sum(replace(s, **usual) == s for s in SETTINGS)
    assert all(row["measured"] > 0 and row["estimate"] for row in report["settings"])


def test_a_folder_that_genai_cannot_load(tmp_path: Path) -> None:
    with (
        pytest.raises(
            IngotError, match=r"onnxruntime-genai ended with exit code 1: .*genai_config"
        ),
        native_loop("onnxruntime-genai", tmp_path, 1),
    ):
        pass


@pytest.mark.parametrize("unified", [False, True])
def test_rows_are_in_lockstep(gguf_file: Path, unified: bool) -> None:
    """Also in mixed steps, where every prompt fits one."""
    with loaded(gguf_file, TINY.settings(64, unified=unified), TOGETHER) as engine:
        window = lockstep(engine, random_prompts(engine, [5, 20, 9], 1), 24)
    assert (window.tokens, window.steps) == (3 * 24, 24)
    # The steps' own time is in the time that passed, but for the clocks' reading.
    assert 0 < window.step_s < 1.05 * window.wall_s
    assert 0 < host_share(window) < 1


def test_rows_that_are_not_in_lockstep_are_an_error(onnx_folder: Path) -> None:
    scheduling = SchedulerSettings(strategy="sequential", prefix_cache=False)
    with (
        loaded(onnx_folder, TINY.settings(64), scheduling) as engine,
        pytest.raises(IngotError, match="not in lockstep"),
    ):
        lockstep(engine, random_prompts(engine, [5, 5], 1), 24)


def test_a_request_that_does_not_end_as_asked_is_an_error(gguf_file: Path) -> None:
    with loaded(gguf_file, TINY.settings(64)) as engine:
        [prompt] = random_prompts(engine, [8], 1)
        with pytest.raises(IngotError, match="did not run to its end: it ended with context"):
            run(engine, [prompt], [greedy(engine.context)])


TOOLS = {
    "llama_bench": "INGOT_LLAMA_BENCH",
    "batched_bench": "INGOT_BATCHED_BENCH",
    "llama_server": "INGOT_LLAMA_SERVER",
}


@pytest.mark.parametrize("depths", [None, (100,)])
@pytest.mark.parametrize("name", ["native", "server"])
def test_native_programs(gguf_file: Path, name: str, depths: tuple[int, ...] | None) -> None:
    """Beside each of them, also behind a text; where they are there."""
    if missing := [variable for variable in TOOLS.values() if variable not in os.environ]:
        pytest.skip(f"{missing[0]} names no program")
    programs = {option: Path(os.environ[variable]) for option, variable in TOOLS.items()}
    behind = {"depths": depths, "sizes": (1, 3), "decode_tokens": 100} if depths else {}
    report = figures_of(name, gguf_file, **programs, **behind)
    assert all(figure > 0 for figure in figures(report))
    if depths is None:
        assert len(report["ratio_of_rounds"]) == TINY.repeats
    else:
        works = ["prefill", "turn of 40", "decode, 1 row", "decode, 3 rows"]
        assert [cell["work"] for cell in report["speeds"]] == works


def test_what_the_native_tools_print() -> None:
    line = parse(BATCHED_BENCH)
    assert (line["pl"], line["pp"], line["tg"]) == (16, 128, 64)
    assert line["speed_tg"] == pytest.approx(16 * 64 / line["t_tg"], rel=1e-4)
    with pytest.raises(IngotError, match="0 results"):
        parse("\n")
    with pytest.raises(IngotError, match="2 results"):
        parse(BATCHED_BENCH * 2)


def test_sides_take_turns() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str, number: int) -> int:
        order.append((name, number))
        return number

    taken = in_turn({name: partial(side, name) for name in "ab"}, 3, warm_up=True)
    assert taken == {"a": [0, 1, 2], "b": [0, 1, 2]}
    numbers = [("b", -1), ("a", -1), ("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert order == numbers


def test_samples_are_compared_round_by_round() -> None:
    # The machine was half as fast in the last round.
    ours, theirs = Samples([4.0, 4.2, 2.0]), Samples([2.0, 2.0, 1.0])
    assert f"{ours:.1f}" == "4.0"
    assert (ours / theirs).median == 2
    assert ours.spread(".1f") == "2.0-4.2"
    found = rounded({"a": ours, "b": (1.23456789, None), "c": {4: 1234567.0}})
    assert found == {"a": [4.0, 4.2, 2.0], "b": [1.2346, None], "c": {4: 1234600.0}}


def test_both_sides_hold_as_many_cells() -> None:
    # llama.cpp rounds up by itself; asked for less, the two sides would differ.
    assert [TINY.settings(n).context for n in (1, 256, 257)] == [256, 256, 512]
    assert TINY.settings(1).batch == BATCH


def test_a_program_that_is_missing(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"docs/benchmarks\.md"):
        BENCHMARKS["server"].run(gguf_file, TINY)
    done = command("bench", gguf_file, "--what", "native", "--batched-bench", tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "docs/benchmarks.md" in done.stderr


def test_names(command: Any, gguf_file: Path) -> None:
    done = command("bench", gguf_file, "--what", "speed,warp")
    assert done.returncode == 2
    for name in ("warp", "speed", *BENCHMARKS):
        assert name in done.stderr
    done = command("bench", gguf_file, "--what", "genai")
    assert done.returncode == 2
    assert "onnx" in done.stderr
    shown = command("bench", "--help").stdout
    assert all(name in shown for name in BENCHMARKS)


def answer(tokens: list[int], gaps: list[float] | None = None) -> Completion:
    tops = None
    if gaps is not None:
        tops = tuple({t: -0.5, 999: -0.5 - gap} for t, gap in zip(tokens, gaps, strict=True))
    count = len(tokens)
    return Completion(
        id="x",
        text="",
        token_ids=tuple(tokens),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(1, count),
        timings=Timings(0, 0, 0, 0, 0, 1, count),
        top_logprobs=tops,
    )


def test_answers_that_differ_at_a_near_tie_are_told_from_others() -> None:
    gaps = [1.0, 0.015, 0.3]
    reference = [answer([1, 2, 3], gaps)] * 4
    # Equal; apart at position 1; the same, with more that differs behind it; apart at position 2.
    made = [answer([1, 2, 3]), answer([1, 9, 3]), answer([1, 9, 9]), answer([1, 2, 9])]
    found = compare(reference, made)
    assert found.near_ties == pytest.approx([0.015, 0.015])
    assert found.others == pytest.approx([0.3])
    assert found.equal == 1


def test_prompts_of_a_file(tmp_path: Path, gguf_file: Path) -> None:
    plain = tmp_path / "prompts.txt"
    plain.write_text("one\n\ntwo\n")
    assert read_texts(plain) == ["one", "two"]
    lines = [{"prompt": "a"}, {"question_id": 1, "turns": ["b", "c"]}, {"text": "d"}]
    objects = tmp_path / "prompts.jsonl"
    objects.write_text("\n".join(map(json.dumps, lines)))
    assert read_texts(objects) == ["a", "b", "d"]
    encoded = bench_prompts(gguf_file, replace(TINY, prompts=objects))
    assert len(encoded) == 3
    assert len(encoded[0]) > 3  # the chat template is around it

    for text, problem in (
        ("{", "cannot be read"),
        ('{"x": 1}', "line 1 has no"),
        ("", "no prompt"),
    ):
        objects.write_text(text)
        with pytest.raises(RequestError, match=problem):
            read_texts(objects)
    with pytest.raises(RequestError, match="cannot be read"):
        read_texts(tmp_path / "none.txt")


def test_random_prompts_are_the_same_for_everybody(gguf_file: Path) -> None:
    first = bench_prompts(gguf_file, TINY)
    assert bench_prompts(gguf_file, TINY) == first
    assert all(3 <= len(prompt) <= 9 for prompt in first)
    assert len(first) == TINY.requests


@pytest.mark.parametrize("shape", ["../../../theirs", "{tmp}/theirs", ".", "x\x1b[0m"])
def test_what_is_no_shape_removes_no_folder(
    shape: str, home: Path, tmp_path: Path, command: Any
) -> None:
    """A path that is taken for a shape, or the other way round."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "model.safetensors").write_text("precious")
    (home / "cache" / "bench").mkdir(parents=True)
    done = command("bench", "--random", shape.format(tmp=tmp_path))
    assert done.returncode == 2
    assert "there are: qwen2-0.5b" in done.stderr
    assert (theirs / "model.safetensors").read_text() == "precious"
    assert (home / "cache" / "bench").is_dir()


def test_more_repeats_than_the_context_holds(gguf_file: Path) -> None:
    with pytest.raises(RequestError, match="take fewer"):
        sampling(gguf_file, BenchOptions(rows=1, repeats=5000))
