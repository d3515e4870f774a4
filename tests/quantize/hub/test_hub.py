from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.models.pulling import parse_request, pull
from quantize import disk
from quantize.errors import DiskFullError, SourceError, UsageError
from quantize.hub.client import (
    Hub,
    HubError,
    HubName,
    Listing,
    OfflineError,
    Patience,
    RemoteFile,
    Repository,
    parse_hub_name,
)
from quantize.hub.transfer import Store, fetch
from quantize.options import SourceOptions
from quantize.source import open_source
from quantize.source.open import download_model
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import AT_ONCE, HURRIED, PATIENT, Notes, files_of, small_model

WEIGHTS = "model.safetensors"
TINY = HubName("org/tiny")


@pytest.fixture(scope="session")
def model(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A small model's files, with others that no build needs."""
    files = files_of(small_model(pebble, tmp_path_factory.mktemp("hub") / "tiny"))
    junk = ("pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx", "evil.py")
    return {**files, **dict.fromkeys(junk, b"never fetched " * 9), "README.md": b"x"}


@pytest.fixture(autouse=True)
def _tiny(hub: FakeHub, model: dict[str, bytes]) -> None:
    hub.add("org/tiny", model)


def get(name: HubName = TINY, hub: Hub = PATIENT, notes: Notes | None = None) -> Path:
    return download_model(name, SourceOptions(str(name)), notes or Notes(), hub)[0]


def test_names():
    assert parse_hub_name("org/name") == HubName("org/name", "main")
    assert parse_hub_name("org/na.me-1@refs/pr/7") == HubName("org/na.me-1", "refs/pr/7")
    assert parse_hub_name("org/name@v1", "v2") == HubName("org/name", "v2")
    for text in ("name", "./a/b", "/a/b", "a/b/c", "../b", "a/..", "a/b@", "a--b/c", "a/.git"):
        assert parse_hub_name(text) is None


def test_a_model_from_the_hub(hub: FakeHub, model: dict[str, bytes]):
    commit = hub.commit("org/tiny")
    notes = Notes()
    source = open_source(SourceOptions("org/tiny"), notes)
    assert (source.name, source.revision, source.kind) == ("tiny", commit, "hf")
    assert source.folder.name == "tiny"  # converters read the model's name from there
    assert source.default_out == Path.cwd() / "tiny-built"
    assert source.fingerprint().revision == commit
    got = files_of(source.folder)
    assert got == {name: model[name] for name in got}
    assert not {name for name in model if name.endswith((".bin", ".py", ".onnx", ".md"))} & set(got)
    assert "consolidated.safetensors" not in got
    assert any("downloading org/tiny" in stage for stage in notes.stages)
    done, total, unit = notes.moved[-1]
    assert (done, total, unit) == (total, len(got[WEIGHTS]), "bytes")
    # Once more: only the question where the branch is now.
    before = len(hub.requests)
    assert open_source(SourceOptions("org/tiny")).fingerprint() == source.fingerprint()
    assert [r.path for r in hub.requests[before:]] == ["/api/models/org/tiny/revision/main"]
    # A commit needs no question.
    before = len(hub.requests)
    assert open_source(SourceOptions("org/tiny", revision=commit)).folder == source.folder
    assert len(hub.requests) == before
    trusted = open_source(SourceOptions("org/tiny", trust_remote_code=True))
    assert (trusted.folder / "evil.py").is_file()


def test_a_broken_connection_is_taken_up_where_it_broke(hub: FakeHub, model: dict[str, bytes]):
    # On the storage host, after the redirect.
    hub.fault(f"^/org/tiny/{WEIGHTS}$", cut_after=100_000, times=1)
    folder = get()
    assert (folder / WEIGHTS).read_bytes() == model[WEIGHTS]
    whole = len(model[WEIGHTS])
    assert [n for n in hub.sent(f"tiny/{WEIGHTS}") if n] == [100_000, whole - 100_000]


def test_the_next_run_fetches_only_the_rest(hub: FakeHub, model: dict[str, bytes]):
    """Interrupted three times in the middle, by another fault each time: no byte comes twice."""
    path, whole = f"^/org/tiny/{WEIGHTS}$", len(model[WEIGHTS])
    for stop in (50_000, 70_000):
        fault = hub.fault(path, cut_after=stop)
        with pytest.raises(HubError, match="stays"):
            get(hub=AT_ONCE)
        fault.times = 0
        assert not list((Store(TINY).base).rglob(WEIGHTS))  # no half file under the final name
    notes = Notes()
    assert (get(notes=notes) / WEIGHTS).read_bytes() == model[WEIGHTS]
    sent = [n for n in hub.sent(f"tiny/{WEIGHTS}") if n]
    assert sent == [50_000, 70_000, whole - 120_000]
    asked = [r.headers.get("range") for r in hub.requests if r.storage and r.path.endswith(WEIGHTS)]
    assert asked == [None, "bytes=50000-", "bytes=120000-"]


def test_a_killed_run_is_taken_up(hub: FakeHub, model: dict[str, bytes]):
    fault = hub.fault(f"^/org/tiny/{WEIGHTS}$", stall_after=2 << 20)
    code = "from quantize.source import open_source; open_source('org/tiny')"
    process = subprocess.Popen([sys.executable, "-c", code])
    while not any(r.sent >= 2 << 20 for r in hub.requests) or not any(
        path.stat().st_size for path in Store(TINY).base.rglob("*.partial")
    ):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    fault.times = 0
    (partial,) = Store(TINY).base.rglob("*.partial")
    there = partial.stat().st_size
    assert there > 0
    assert (get() / WEIGHTS).read_bytes() == model[WEIGHTS]
    assert hub.sent(f"tiny/{WEIGHTS}")[-1] == len(model[WEIGHTS]) - there
    assert not list(Store(TINY).base.rglob("*.partial"))


def test_two_runs_take_turns(hub: FakeHub, model: dict[str, bytes], tmp_path: Path):
    repo = Repository(TINY, Notes(), PATIENT)
    listing = repo.look()
    file = next(file for file in listing.files if file.path == WEIGHTS)
    moved = [0, 0]

    def run(number: int) -> None:
        def count(size: int) -> None:
            moved[number] += size

        fetch(repo, listing, file, tmp_path / "blob", count)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, (0, 1)))
    assert (tmp_path / "blob").read_bytes() == model[WEIGHTS]
    assert [n for n in hub.sent(f"tiny/{WEIGHTS}") if n] == [len(model[WEIGHTS])]
    assert moved == [file.bytes, file.bytes]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["blob"]


def test_a_server_that_ignores_ranges(hub: FakeHub, model: dict[str, bytes]):
    hub.fault(f"^/org/tiny/{WEIGHTS}$", cut_after=50_000, times=1)
    hub.fault(f"^/org/tiny/{WEIGHTS}$", ignore_range=True)
    notes = Notes()
    assert (get(notes=notes) / WEIGHTS).read_bytes() == model[WEIGHTS]
    assert notes.moved[-1][0] == notes.moved[-1][1]


def test_damage_on_the_way_is_found(hub: FakeHub, model: dict[str, bytes]):
    for name in ("config.json", WEIGHTS):
        fault = hub.fault(f"/{name}$", flip=True)
        with pytest.raises(HubError, match=rf"{name} arrived with another checksum"):
            get()
        assert not list(Store(TINY).base.rglob(name))
        fault.times = 0
    assert (get() / WEIGHTS).read_bytes() == model[WEIGHTS]

    # A damaged beginning is fetched again.
    weights = next(Store(TINY).base.rglob(WEIGHTS))
    fault = hub.fault(f"^/org/tiny/{WEIGHTS}$", cut_after=50_000)
    hub.add("org/tiny", {**model, WEIGHTS: model[WEIGHTS][::-1]})
    with pytest.raises(HubError):
        get(hub=AT_ONCE)
    fault.times = 0
    (partial,) = Store(TINY).base.rglob("*.partial")
    partial.write_bytes(b"?" + partial.read_bytes()[1:])
    assert (get() / WEIGHTS).read_bytes() == model[WEIGHTS][::-1] != weights.read_bytes()


def test_a_stalled_connection(hub: FakeHub, model: dict[str, bytes]):
    fault = hub.fault(f"^/org/tiny/{WEIGHTS}$", stall_after=0)
    short = Hub(Patience(read_s=0.3, attempts=2, pause_s=0.01))
    with pytest.raises(OfflineError, match=r"stalled: nothing came for 0.3 s.* next run resumes"):
        get(hub=short)
    fault.times = 0
    # Stalled once, it goes on by itself.
    hub.fault(f"^/org/tiny/{WEIGHTS}$", stall_after=40_000, times=1)
    assert (get(hub=HURRIED) / WEIGHTS).read_bytes() == model[WEIGHTS]
    assert hub.sent(f"tiny/{WEIGHTS}")[-1] == len(model[WEIGHTS]) - 40_000


def test_too_many_requests(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub.fault("^/api/models", status=429, headers={"Retry-After": "1"}, times=1)
    notes, waits, sleep = Notes(), list[float](), time.sleep

    def waited(seconds: float) -> None:
        """Record a wait of the main thread; other threads do wait."""
        main = threading.current_thread() is threading.main_thread()
        (waits.append if main else sleep)(seconds)

    monkeypatch.setattr(time, "sleep", waited)
    get(notes=notes)
    assert (notes.notes, waits) == (["the hub asks to wait 1 s"], [1.0])
    limits = {"RateLimit": '"api";r=0;t=240', "RateLimit-Policy": '"fixed window";"api";q=5;w=300'}
    hub.fault("^/api/models", status=429, headers=limits)
    with pytest.raises(HubError, match=r"429\); try again in 240 s; with HF_TOKEN set") as caught:
        get()
    assert waits == [1.0]
    assert caught.value.exit_code == 3


def test_a_hub_in_trouble(hub: FakeHub):
    hub.fault("^/api/models", status=503, times=1)
    get()
    hub.fault("^/api/models", status=503)
    with pytest.raises(HubError, match=r"in trouble \(HTTP 503\)"):
        get()


def test_what_is_not_there(model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        UsageError, match=r"no model org/typo .* private: .* set HF_TOKEN"
    ) as caught:
        get(HubName("org/typo"))
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="Nor is there a folder assets/peble"):
        open_source("assets/peble")
    with pytest.raises(UsageError, match="org/tiny has no revision 'v9'"):
        get(HubName("org/tiny", "v9"))
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    with pytest.raises(UsageError, match=r"no model org/typo .* your token may not see it"):
        get(HubName("org/typo"))


def test_tokens(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub.gated.add("org/tiny")
    with pytest.raises(HubError, match=r"is gated: accept its conditions .* set HF_TOKEN"):
        get()
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    with pytest.raises(HubError, match="is gated, and your token has no access to it"):
        get()
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(HubError, match="does not accept the token"):
        get()
    hub.gated.clear()
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    get()
    tokens = {(r.storage, "authorization" in r.headers) for r in hub.requests[-9:]}
    assert (True, True) not in tokens  # the storage host never sees it
    assert (True, False) in tokens
    assert (False, True) in tokens


def test_without_a_connection(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    folder = get()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    notes = Notes()
    assert get(notes=notes) == folder
    assert "continuing with what was downloaded" in notes.notes[0]
    with pytest.raises(OfflineError, match="no connection to the hub") as caught:
        get(HubName("org/other"))
    assert caught.value.exit_code == 3


def test_a_new_revision_fetches_what_has_changed(hub: FakeHub, model: dict[str, bytes]):
    get()
    hub.add("org/tiny", {**model, "generation_config.json": b'{"new": 1}'})
    folder = get()
    assert (folder / "generation_config.json").read_bytes() == b'{"new": 1}'
    assert len([n for n in hub.sent(f"tiny/{WEIGHTS}") if n]) == 1


def test_what_other_tools_downloaded_is_used(
    hub: FakeHub, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from huggingface_hub import constants

    commit = hub.commit("org/tiny")
    cache = tmp_path / "theirs"
    snapshot = cache / "models--org--tiny" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / WEIGHTS).write_bytes(model[WEIGHTS])
    (snapshot / "config.json").write_bytes(b"another text of the wrong checksum")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    folder = get()
    assert (folder / WEIGHTS).read_bytes() == model[WEIGHTS]
    assert (folder / "config.json").read_bytes() == model["config.json"]
    assert not [n for n in hub.sent(f"tiny/{WEIGHTS}") if n]


def test_refused_before_any_weights_come(hub: FakeHub, model: dict[str, bytes]):
    config = model["config.json"].rstrip().removesuffix(b"}")
    foreign = config.replace(b"Qwen2ForCausalLM", b"MyOwnLM")
    code = foreign + b', "auto_map": {"AutoModel": "m.M"}}'
    rounded = config + b', "quantization_config": {"quant_method": "gptq"}}'
    pickled = {n: d for n, d in model.items() if not n.endswith("safetensors")}
    lora = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}
    for repo, files, kind, words in (
        ("org/code", {**model, "config.json": code}, UsageError, "trust-remote-code"),
        ("org/gptq", {**model, "config.json": rounded}, SourceError, "gptq"),
        ("org/pickled", pickled, SourceError, "--allow-pickle"),
        ("org/ready-GGUF", {"m-Q4_K_M.gguf": b"GGUF"}, UsageError, "ingot pull org/ready-GGUF"),
        ("org/adapter", lora, UsageError, "--lora"),
    ):
        hub.add(repo, files)
        with pytest.raises(kind, match=words):
            get(HubName(repo))
    assert not any(r.path.endswith(WEIGHTS) for r in hub.requests)


def test_a_disk_that_is_too_small(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk, "_SPARE", 10**18)
    with pytest.raises(DiskFullError, match="INGOT_HOME"):
        get()
    assert not any("/resolve/" in r.path for r in hub.requests)


def test_files_too_large_for_plain_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INGOT_HOME", str(tmp_path))
    huge = RemoteFile("model.safetensors", 60_000_000_000, "0" * 64, None)
    with pytest.raises(HubError, match=r"60 GB; files above 50 GB .*hf download"):
        Store(TINY).bring(Listing("org/tiny", "c" * 40, (huge,)), [huge])


def _lie(lie: dict[str, dict[str, Any]]):
    """What is said instead of every file, of what a large one is (LFS), and of the repository."""

    def told(answer: dict[str, Any]) -> dict[str, Any]:
        for one in answer["siblings"]:
            one |= lie.get("file", {})
            if "lfs" in lie:
                one["lfs"] = {**one.get("lfs", {"size": one["size"]}), **lie["lfs"]}
        return answer | lie.get("said", {})

    return told


_FILE = Path(__file__).with_name("lies.json")
LIES = {
    **{name: _lie(lie) for name, lie in json.loads(_FILE.read_text()).items()},
    "a file in a file": lambda said: (
        said
        | {"siblings": [*said["siblings"], {**said["siblings"][0], "rfilename": "config.json/x"}]}
    ),
    "answer is a list": lambda _: [],
    "answer is nested": lambda said: said | {"x": json.loads("[" * 300 + "]" * 300)},
}


def test_a_hub_that_lies_reaches_no_file_elsewhere(hub: FakeHub, tmp_path: Path):
    (tmp_path / "victim").write_text("mine")
    before = {*tmp_path.rglob("*")}
    for name, lie in LIES.items():
        hub.lie = lie
        with pytest.raises(HubError):
            get(hub=AT_ONCE)
        with pytest.raises(HubError):
            pull(parse_request("org/tiny"), Notes(), AT_ONCE)
        assert {*tmp_path.rglob("*")} == before, name
    assert (tmp_path / "victim").read_text() == "mine"


def test_an_answer_without_an_end_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quantize.hub.client._MOST_ANSWER", 10_000)
    hub.add("org/tiny", {f"{number}.json": b"x" for number in range(1000)})
    with pytest.raises(HubError, match="more than 10,000 bytes"):
        Repository(TINY, Notes(), AT_ONCE).look()


def test_a_listing_on_the_disk_is_checked_as_the_hub_is(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    """Of an older program, which wrote down what a hub had said."""
    commit = hub.commit("org/tiny")
    get()
    store = Store(HubName("org/tiny", commit), Notes(), AT_ONCE)
    record = store.base / commit / "listing.json"
    listing = json.loads(record.read_text())
    listing["files"][0]["sha256"] = "../../../victim"
    record.write_text(json.dumps(listing))
    before = len(hub.requests)
    assert store.listing().commit == commit  # asked for again
    assert len(hub.requests) == before + 1
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    ref = store.base / "refs" / "main"
    for damage in ("../../elsewhere", "x" * 40, "", "\0"):
        ref.write_text(damage)
        with pytest.raises(OfflineError):
            get()


def test_a_revision_that_is_no_file_name():
    for revision in ("..", ".", "x" * 300):
        with pytest.raises(UsageError, match="the revision"):
            get(HubName("org/tiny", revision), AT_ONCE)
