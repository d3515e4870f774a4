"""LoRA adapters in the engine: loaded, asked for by request, swapped while others run."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.request import Completion, Request, SamplingParams
from runtimes.settings import MOST_ADAPTERS, RunnerSettings
from runtimes.worker.engine import WorkerEngine
from tests.adapters import write_adapter
from tests.runtimes.engine.gates import Watched
from tests.runtimes.engine.test_draft import drafting
from tests.runtimes.ties import REGROUPED_TIE, near_ties

PARAMS = SamplingParams(max_tokens=6, min_tokens=6, top_logprobs=2)
SETTINGS = RunnerSettings(slots=4, context=128)


def freed(engine: Engine, name: str) -> bool:
    try:
        engine.unload_adapter(name)
    except RequestError:
        return False
    return True


def check(expected: list[Completion], found: list[Completion]) -> None:
    assert not any(one.error for one in found)
    assert near_ties(expected, found, REGROUPED_TIE) <= len(found) / 5


@pytest.fixture(scope="module", params=["q8_0", "onnx-int8"])
def model(request: pytest.FixtureRequest, pebble_built: Path) -> Path:
    return resolve(pebble_built, recipe=request.param)


@pytest.fixture(scope="module")
def files(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    names = [f"a{seed}" for seed in range(MOST_ADAPTERS + 1)]
    return {name: write_adapter(pebble, folder / f"{name}.gguf", int(name[1:])) for name in names}


def prompts(engine: Engine | WorkerEngine) -> list[list[int]]:
    return [engine.encode(f"What is {20 + i} and {i}? Tell me all of it.") for i in range(2)]


def answer(engine: Engine | WorkerEngine, prompt: list[int], adapter: str | None) -> Completion:
    done = engine.submit(Request(prompt, PARAMS, adapter=adapter)).result()
    assert done.error is None, done.error
    return done


@pytest.fixture(scope="module")
def alone(model: Path, files: dict[str, Path]) -> dict[tuple[str | None, int], Completion]:
    """The answers with each adapter, in an engine that has no other and caches nothing."""
    found = {}
    with Engine.load(model, RunnerSettings(slots=1, context=128)) as engine:
        for name in (None, *files):
            if name:
                engine.load_adapter(name, files[name])
            for number, prompt in enumerate(prompts(engine)):
                engine.trim()
                found[name, number] = answer(engine, prompt, name)
            if name:
                engine.unload_adapter(name)
    assert len({found[name, 0].token_ids for name in (None, *files)}) >= 6
    return found


@pytest.mark.parametrize("unified", [False, True])
def test_rows_of_all_adapters_run_together(model, files, alone, unified):
    if unified and model.is_dir():
        pytest.skip("llama.cpp's alone")
    settings = RunnerSettings(slots=4, context=128, unified_kv=unified)
    with Engine.load(model, settings) as engine:
        names = [name for name in files if name != "a8"]
        for name in names:
            engine.load_adapter(name, files[name])
        assert engine.adapters == set(names)
        asked = [(name, number) for name in (None, *names) for number in range(2)] * 2
        random.Random(5).shuffle(asked)
        texts = prompts(engine)
        streams = [
            engine.submit(Request(texts[number], PARAMS, adapter=name)) for name, number in asked
        ]
        found = [stream.result() for stream in streams]
        check([alone[one] for one in asked], found)


def test_a_draft_guesses_what_adapters_say(model, files, alone, gguf):
    """It has no adapter itself: what it guesses is verified with the row's own."""
    rows = {"slots": 2, "unified_kv": True} if model.suffix == ".gguf" else {"slots": 1}
    with drafting(model, gguf, context=128, **rows) as engine:
        for name in ("a0", "a1"):
            engine.load_adapter(name, files[name])
        asked = [(name, number) for number in range(2) for name in (None, "a0", "a1")]
        texts = prompts(engine)
        streams = [
            engine.submit(Request(texts[number], PARAMS, adapter=name)) for name, number in asked
        ]
        check([alone[one] for one in asked], [stream.result() for stream in streams])
        drafted = {
            name: sum(
                stream.result().timings.drafted_tokens
                for stream, (other, _) in zip(streams, asked, strict=True)
                if other == name
            )
            for name in (None, "a0", "a1")
        }
        assert all(drafted.values())


def test_swapped_under_load_no_answer_is_of_another(model, files, alone):
    """Names go to other files while requests run; whatever is cached of a name goes with it."""
    chance = random.Random(7)
    with Engine.load(model, SETTINGS) as engine:
        texts, at = prompts(engine), {}
        for slot in range(MOST_ADAPTERS):
            at[f"name{slot}"] = f"a{slot}"
            engine.load_adapter(f"name{slot}", files[f"a{slot}"])
        running: list = []
        for _ in range(80):
            name, number = chance.choice([None, *at]), chance.randrange(2)
            request = Request(texts[number], PARAMS, adapter=name)
            running.append((at.get(name), number, engine.submit(request)))
            if chance.random() < 0.2:
                idle = chance.choice(list(at))
                if not freed(engine, idle):  # in use
                    continue
                at[idle] = chance.choice(list(files))
                engine.load_adapter(idle, files[at[idle]])
        expected = [alone[file, number] for file, number, _ in running]
        check(expected, [stream.result() for _, _, stream in running])


def test_what_is_refused(model, files, tmp_path, gguf):
    with Engine.load(model, SETTINGS) as engine:
        ids = prompts(engine)[0]
        with pytest.raises(RequestError, match="no adapter 'a0' is loaded; there is: none"):
            engine.submit(Request(ids, PARAMS, adapter="a0"))
        with pytest.raises(RequestError, match="cannot be called"):
            engine.load_adapter("a:b", files["a0"])
        with pytest.raises(RequestError, match="there is no file"):
            engine.load_adapter("a", tmp_path / "none.gguf")
        with pytest.raises(ModelError, match="cannot load the adapter"):
            engine.load_adapter("a", gguf)
        with pytest.raises(RequestError, match="to unload"):
            engine.unload_adapter("a")
        for name in list(files)[:MOST_ADAPTERS]:
            engine.load_adapter(name, files[name])
        with pytest.raises(RequestError, match="that is the most"):
            engine.load_adapter("a8", files["a8"])
        engine.unload_adapter("a1")
        with pytest.raises(RequestError, match="already"):
            engine.load_adapter("a0", files["a8"])
    settings = RunnerSettings(slots=2, context=64, reproducible=True)
    with (
        Engine.load(model, settings) as engine,
        pytest.raises(RequestError, match="takes no adapters"),
    ):
        engine.load_adapter("a0", files["a0"])


def test_an_adapter_in_use_stays(model, files):
    with Engine.load(model, SETTINGS) as engine:
        engine.load_adapter("a0", files["a0"])
        looked = []

        def look() -> None:  # between two steps
            with pytest.raises(RequestError, match="1 requests still use the adapter 'a0'"):
                engine._unload_adapter("a0")
            looked.append(True)

        done = Watched(engine, Request(prompts(engine)[0], PARAMS, adapter="a0"), look).result()
        assert done.error is None
        assert looked
        engine.unload_adapter("a0")
        assert engine.adapters == frozenset()


def test_a_session_is_of_one_adapter(model, files, tmp_path, alone):
    path = tmp_path / "session"
    with Engine.load(model, SETTINGS) as engine:
        prompt = engine.encode("Tell me all that is known of the sea, and of the ships on it.")
        for name, file in (("one", "a3"), ("same", "a3"), ("other", "a4")):
            engine.load_adapter(name, files[file])
        right = answer(engine, prompt, "one")
        with pytest.raises(RequestError, match="nothing of this conversation"):
            engine.save_session(prompt, path)  # of the model as it is
        kept = engine.save_session(prompt, path, "one")
        engine.trim()
        for name in (None, "other"):
            with pytest.raises(ModelError, match="another model file"):
                engine.load_session(path, name)
        with pytest.raises(RequestError, match="no adapter 'none' is loaded"):
            engine.load_session(path, "none")
        assert engine.load_session(path, "same") == prompt[:kept]
        found = answer(engine, prompt, "same")
        assert found.usage.cached_tokens == min(kept, len(prompt) - 1)
        check([right], [found])
        for name in ("one", None):
            assert answer(engine, prompt, name).usage.cached_tokens == 0
        engine.unload_adapter("same")
        engine.load_adapter("same", files["a5"])
        with pytest.raises(ModelError, match="another model file"):
            engine.load_session(path, "same")


def test_a_new_worker_process_has_them_too(model, files, alone):
    with WorkerEngine.load(model, SETTINGS) as engine:
        engine.load_adapter("one", files["a3"])
        engine.load_adapter("gone", files["a4"])
        engine.unload_adapter("gone")
        text = prompts(engine)[1]
        check([alone["a3", 1]], [answer(engine, text, "one")])
        os.kill(engine.pid, signal.SIGKILL)
        for _ in range(3):  # a request that the dying process still had is lost
            done = engine.submit(Request(text, PARAMS, adapter="one")).result()
            if not done.retryable:
                break
        check([alone["a3", 1]], [done])
        assert engine.adapters == {"one"}
        lost = engine.submit(Request(text, PARAMS, adapter="gone")).result()
        assert "no adapter 'gone'" in str(lost.error)
        with pytest.raises(IngotError, match="already"):
            engine.load_adapter("one", files["a5"])
