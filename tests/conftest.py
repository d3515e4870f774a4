"""Fixtures that several packages' tests share: Pebble, quantized once a session."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from runtimes.machine.selftest import ensure
from runtimes.models.registry import backends
from tests import forks, parallel, quick
from tests.support import furnish

ROOT = Path(__file__).resolve().parent.parent

# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that;
# the tests that send SIGINT to a child need it as a terminal would have it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

parallel.keep_to_own_cores()

_LONGEST_NAME = 80  # characters of a parameter

# Hundreds of commands and engines are started: each would compile all of Ingot anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Every 700 objects, as Python does by default, is a fifth of what an app of the terminal costs.
gc.set_threshold(100_000, 10, 10)

# How long an example takes is the machine's business, and a run has to end as the one before it.
# To search for other examples: --hypothesis-profile search
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile("same")
# Else constants of all modules that are loaded, which takes seconds, and which depend on them.
providers._get_local_constants = lambda: providers._local_constants


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A value of megabytes names its test by its beginning: workers send each name to and fro."""
    if isinstance(val, (str, bytes)) and len(val) > _LONGEST_NAME:
        return f"{argname}-{str(val[:20])!a}-{len(val)}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Every other worker begins with the last folder: two that meet in the middle compile each half
    of the files, and read the other half."""
    report = yield
    if isinstance(collector, pytest.Directory) and (parallel.worker() or 0) % 2:
        report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, Any, Any]:
    if parallel.worker() is not None:
        items.sort(key=lambda item: item.path)  # the same in all workers
    result = yield
    parallel.slowest_first(items)
    return result


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported stays: half a million objects that nothing need look at again


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return parallel.group_of(nodeid)

    config.option.loadscopereorder = False  # by the number of tests, which says little
    return ByGroup(config, log)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Half a surrogate pair in a log or a message would end the run: execnet sends none."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_sendable, value))
    if isinstance(value, dict):
        return {_sendable(key): _sendable(one) for key, one in value.items()}
    return value


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command that runs within a test sets up logging for its process: not for later tests."""
    root = logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - handlers:
        if not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def _quick_quantize() -> Iterator[None]:
    with quick.quantize():
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_workers() -> Iterator[None]:
    with forks.children():
        yield


@pytest.fixture(scope="session", autouse=True)
def _tested_runtimes() -> None:
    """Before a home is made that takes over what is known of them."""
    for one in backends():
        ensure(one.name)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own INGOT_HOME, furnished and else empty."""
    furnish(tmp_path / "home")
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A hub on 127.0.0.1 (``FakeHub``), and an own INGOT_HOME."""
    from tests.quantize.hub.fakehub import FakeHub

    served = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield served
    served.close()


@pytest.fixture(scope="session")
def pebble() -> Path:
    """The Hugging Face folder of the demo model."""
    return ROOT / "assets" / "pebble"


@pytest.fixture(scope="session")
def pebble_short(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with 16 graded questions and a quarter of the text: it is soon measured."""
    folder = Path(shutil.copytree(pebble, tmp_path_factory.mktemp("short") / "pebble"))
    for name, count in (("graded.jsonl", 16), ("evaluation.txt", 350)):
        lines = (pebble / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:count]), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def pebble_built(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pebble in its four files, built by the command that users type, in this process.

    While working on tests, INGOT_TEST_BUILT may name a folder that holds them already.
    """
    ready = os.environ.get("INGOT_TEST_BUILT")
    if ready:
        return Path(ready)

    from tests.quantize.conftest import run_quantize

    def make(out: Path) -> None:
        run_quantize(pebble, "--out", out, "--no-measure", drawn=True)

    return parallel.once(tmp_path_factory, "pebble-built", make)


@pytest.fixture(scope="session")
def pebble_f16(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a half-precision GGUF file."""
    from quantize.gguf.converter import export_f16
    from quantize.quality.tokens import Reference

    def make(out: Path) -> None:
        out.mkdir()
        # The converter knows its pre-tokenizer, so nothing is compared.
        export_f16(pebble, out / "pebble-f16.gguf", Reference([], [], [], [], [], None), out)

    return parallel.once(tmp_path_factory, "pebble-f16", make) / "pebble-f16.gguf"


@pytest.fixture(scope="session")
def pebble_thinks(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file of a Pebble that thinks before it answers: its adapter, merged."""
    from tests.quantize.conftest import run_quantize

    def make(out: Path) -> None:
        thinks, source = ROOT / "assets" / "pebble_thinks", out / "source"
        shutil.copytree(pebble, source)
        shutil.copy(thinks / "chat_template.jinja", source)
        config = source / "tokenizer_config.json"  # its template would go before the file
        said = json.loads(config.read_text())
        config.write_text(json.dumps({k: v for k, v in said.items() if k != "chat_template"}))
        what = ("--lora", thinks, "--recipe", "q8_0", "--no-measure")
        run_quantize(source, "--out", out / "built", *what)

    folder = parallel.once(tmp_path_factory, "pebble-thinks", make)
    (file,) = (folder / "built").glob("*.gguf")
    return file


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tiny models that embed texts (``tests.encoders``)."""
    from quantize.children import run_child
    from tests.encoders import make_encoders

    def make(out: Path) -> None:
        out.mkdir()
        run_child(partial(make_encoders, out), "making encoders", out, torch=True)

    return parallel.once(tmp_path_factory, "encoders", make)


@pytest.fixture(scope="session", autouse=True)
def _default_device() -> Iterator[None]:
    """INGOT_TEST_DEVICE names a device for what the tests' own process loads without naming one, by
    the runtime that lists it: ONNX Runtime does not take WebGPU by itself."""
    name = os.environ.get("INGOT_TEST_DEVICE")
    with pytest.MonkeyPatch.context() as patch:
        if name:
            _compute_on(name, patch)
        yield


def _compute_on(name: str, patch: pytest.MonkeyPatch) -> None:
    having = [one for one in backends() if name in (device.name for device in one.devices())]
    assert having, f"no runtime has the device {name!r} of INGOT_TEST_DEVICE"
    kind = type(having[0])
    opening = kind.open

    def opened(self: Any, model: Any, settings: Any) -> Any:
        where = name if settings.device == "auto" else settings.device
        return opening(self, model, replace(settings, device=where))

    patch.setattr(kind, "open", opened)


@pytest.fixture(scope="session", params=["q8_0", "onnx-int8", "q4_k_m", "onnx-int4"])
def pebble_file(request: pytest.FixtureRequest, pebble_built: Path) -> Path:
    """Each of Pebble's four files in turn."""
    from quantize.resolve import resolve

    return resolve(pebble_built, recipe=request.param)


_TIES = pytest.StashKey[dict[str, list[int]]]()


@pytest.fixture
def tie_count(request: pytest.FixtureRequest) -> Callable[[str, int, int], None]:
    """Takes how many of so many texts parted at a near-tie; the sums end the session's report."""
    counts = request.config.stash.setdefault(_TIES, {})

    def count(where: str, ties: int, texts: int) -> None:
        sums = counts.setdefault(where, [0, 0])
        sums[0] += ties
        sums[1] += texts

    return count


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of a parallel run sends its counts to the process that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["ties"] = session.config.stash.get(_TIES, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    counts = node.config.stash.setdefault(_TIES, {})
    for where, pair in getattr(node, "workeroutput", {}).get("ties", {}).items():
        sums = counts.setdefault(where, [0, 0])
        sums[:] = [have + more for have, more in zip(sums, pair, strict=True)]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    counts = config.stash.get(_TIES, {})
    ties, texts = (sum(pair[i] for pair in counts.values()) for i in (0, 1))
    if texts:
        terminalreporter.write_line(f"greedy texts that parted at a near-tie: {ties} of {texts}")
        for where, (some, all_of_them) in counts.items():
            if some:
                terminalreporter.write_line(f"  {where}: {some} of {all_of_them}")
