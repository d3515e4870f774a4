"""Loading models one after the other, ending a load, and what is said of the loaded one."""

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.chat.host import EngineHost, HostState, LoadCancelledError, label_of
from app.options import ModelOptions, PlanOptions
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.models.registry import read_model
from tests.support import until

SMALL = {"context": 256, "threads": 1}


@pytest.fixture
def fresh(home: None) -> Iterator[EngineHost]:
    others = workers()
    found = EngineHost()
    found.others = others
    yield found
    for worker in workers(found):
        if worker.status() == psutil.STATUS_STOPPED:  # a test has failed and left it so
            worker.kill()
    found.close()


def workers(host: EngineHost | None = None) -> list[psutil.Process]:
    """Engine processes of this one, without those of other hosts."""
    found = []
    for child in psutil.Process().children():
        try:
            if "runtimes.worker.child" in child.cmdline():
                found.append(child)
        except psutil.Error:
            pass
    return [one for one in found if host is None or one not in host.others]


def test_what_it_says_of_a_loaded_model(host: EngineHost):
    assert (host.state, host.label) == (HostState.READY, "pebble · q8_0")
    assert host.details == "llamacpp · 1 thread"
    assert (host.engine.slots, host.engine.context) == (1, 512)
    assert host.model == str(host.choice.file.path)
    bits, unit, *_ = host.quality.split()
    assert 8 < float(bits) < 9.5
    assert unit == "bits"


def test_an_engine_has_a_name_from_the_first_moment_on(
    fresh: EngineHost, pebble_built: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[bool, str, str]] = []

    def slow(*_: object, **_more: object) -> str:
        time.sleep(0.02)  # as where others hold the processor
        return "said"

    monkeypatch.setattr("app.chat.host.label_of", slow)
    monkeypatch.setattr("app.chat.host.details_of", slow)
    options = ModelOptions(recipe="q8_0", **SMALL)
    thread = threading.Thread(target=fresh.load, args=(str(pebble_built), options))
    thread.start()
    while fresh.state is not HostState.READY:
        seen.append((fresh.engine is not None, fresh.label, fresh.details))
        time.sleep(0.001)
    thread.join()
    assert all(one[1:] == ("said", "said") for one in seen if one[0])


def test_stats_never_wait(host: EngineHost, monkeypatch: pytest.MonkeyPatch):
    asked, answer = threading.Event(), threading.Event()
    known = host.engine.stats

    def held() -> EngineStats:
        assert not asked.is_set(), "what is not answered is not asked for again"
        asked.set()
        answer.wait()
        return known()

    with monkeypatch.context() as patch:
        patch.setattr(host.engine, "stats", held)
        while not asked.is_set():
            assert host.stats() is not None
        for _ in range(200):
            assert host.stats() is not None
        answer.set()
    before = host.stats()
    assert host.engine.generate([[1, 5]])
    until(host.stats, lambda now: now is not None and now.completions > before.completions)


def test_another_model_takes_the_place_of_the_first(
    fresh: EngineHost, pebble_built: Path, tmp_path: Path
):
    assert fresh.state is HostState.EMPTY
    assert (fresh.stats(), fresh.engine, fresh.quality) == (None, None, "")
    fresh.load(str(pebble_built), ModelOptions(recipe="q4_k_m", **SMALL))
    first = workers(fresh)
    fresh.load(str(pebble_built), ModelOptions(recipe="onnx-int4", **SMALL))
    assert fresh.label == "pebble · onnx-int4"
    assert len(workers(fresh)) == 1
    assert workers(fresh) != first
    # A MODEL that there is not takes nothing away.
    with pytest.raises(ModelError, match="no such file"):
        fresh.load("absent.gguf")
    assert (fresh.state, fresh.label) == (HostState.READY, "pebble · onnx-int4")
    assert "absent.gguf" in fresh.error
    fresh.close()
    assert fresh.state is HostState.EMPTY
    assert not workers(fresh)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes((pebble_built / "pebble-q8_0.gguf").read_bytes()[:-1000])
    with pytest.raises(ModelError):
        fresh.load(str(broken), ModelOptions(**SMALL))
    assert fresh.state is HostState.FAILED
    assert "broken.gguf" in fresh.error
    assert (fresh.label, fresh.engine, fresh.choice) == ("", None, None)
    with pytest.raises(RequestError):
        fresh.load(str(pebble_built), settings=PlanOptions(kv_tokens=64))
    fresh.load(str(pebble_built / "pebble-q8_0.gguf"), ModelOptions(**SMALL))
    assert (fresh.state, fresh.error) == (HostState.READY, None)


@pytest.mark.parametrize("how", ["close", "another"])
def test_a_load_is_ended_at_once(fresh: EngineHost, pebble_built: Path, how: str):
    errors: list[IngotError] = []

    def load() -> None:
        try:
            fresh.load(str(pebble_built), ModelOptions(recipe="q8_0", **SMALL))
        except IngotError as error:
            errors.append(error)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    until(lambda: workers(fresh))[0].suspend()  # it never gets ready
    assert fresh.state is HostState.LOADING
    if how == "another":
        fresh.load(str(pebble_built), ModelOptions(recipe="onnx-int8", **SMALL))
    else:
        fresh.close()  # waits for nobody: the load would never end
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [LoadCancelledError]
    assert fresh.error is None
    another = how == "another"
    assert fresh.state is (HostState.READY if another else HostState.EMPTY)
    assert fresh.label == ("pebble · onnx-int8" if another else "")
    assert len(workers(fresh)) == another


def test_labels(pebble_built: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    source = pebble_built / "pebble-q8_0.gguf"
    for name, expected in (
        ("tiny.BF16.gguf", "tiny · bf16"),
        ("model-UD-IQ2_XXS.gguf", "model · ud-iq2_xxs"),
        ("plain.gguf", "plain"),
    ):
        (tmp_path / name).symlink_to(source)
        assert label_of(read_model(tmp_path / name)) == expected
    folder = tmp_path / "my model"
    shutil.copytree(pebble_built / "onnx-int8", folder)
    assert label_of(read_model(folder)) == "my model"
    (tmp_path / "manifest.json").write_text("{")
    assert label_of(read_model(folder)) == "my model"
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
