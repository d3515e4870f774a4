"""`ingot pull`, `models` and `rm`, and a screen's downloads, against a hub on 127.0.0.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.models import library, pulling
from app.models.hub import contents
from app.models.library import model_file
from app.models.pulling import PullJob, PullState, find_builds, parse_request, pull
from app.options import ModelOptions
from quantize.hub.client import Hub, HubError, HubName
from quantize.manifest import FileEntry, Manifest, ModelInfo, ModelOrigin, load_manifest
from runtimes.errors import ModelError, RequestError
from tests.app.models.kept import built
from tests.app.models.test_library import AWAY, theirs
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import AT_ONCE, PATIENT, Notes, files_of
from tests.support import until

EIGHT = b"GGUF eight" * 9000
SMALL = {
    "README.md": b"# ready",
    "tiny-Q4_K_M.gguf": b"GGUF four" * 9000,
    "tiny-Q8_0.gguf": EIGHT,
    "tiny-BF16-00001-of-00002.gguf": b"GGUF one" * 50,
    "tiny-BF16-00002-of-00002.gguf": b"GGUF two" * 50,
    "mmproj-tiny-F16.gguf": b"an image encoder" * 5,
    "cpu/int4-block-32/genai_config.json": b"{}",
    "cpu/int4-block-32/model.onnx": b"onnx" * 50,
    "cpu/int4-block-32/model.onnx.data": b"data" * 5000,
}


@pytest.fixture
def hub(hub: FakeHub) -> FakeHub:
    hub.add("org/tiny-GGUF", SMALL)
    return hub


def get(text: str, hub: Hub = AT_ONCE, notes: Notes | None = None) -> Path:
    return pull(parse_request(text), notes or Notes(), hub)


def labels() -> set[str]:
    return {build.label for build in library.read("org/tiny-GGUF").builds}


def test_what_is_in_a_repository() -> None:
    names = ("a/M-UD-Q4_K_XL.gguf", "m.iq4_xs.gguf", "m-fp16.gguf", "odd.gguf", "m.imatrix.gguf")
    assert [b.label for b in find_builds(names)] == ["UD-Q4_K_XL", "F16", "IQ4_XS", "odd"]
    builds = {build.label: (build.main, len(build.files)) for build in find_builds(SMALL)}
    assert builds == {
        "Q4_K_M": ("tiny-Q4_K_M.gguf", 1),
        "Q8_0": ("tiny-Q8_0.gguf", 1),
        "BF16": ("tiny-BF16-00001-of-00002.gguf", 2),
        "cpu/int4-block-32": ("cpu/int4-block-32", 3),
    }
    root = find_builds(("genai_config.json", "model.onnx", "sub/x"))
    assert [(b.label, b.main, len(b.files)) for b in root] == [("onnx", "", 2)]


def test_what_is_pulled(hub: FakeHub) -> None:
    path = get("org/tiny-GGUF:q4_k_m")
    assert path.parent == library.library_dir() / "org" / "tiny-GGUF"
    assert files_of(path.parent).keys() == {path.name, "library.json"}  # nothing else came
    notes = Notes()
    get("org/tiny-GGUF:Q4_K_M", notes=notes)
    assert "already" in notes.notes[0]
    assert len([n for n in hub.sent("Q4_K_M.gguf") if n]) == 1
    folder = get("org/tiny-GGUF:int4-block-32")
    assert folder == path.parent / "cpu" / "int4-block-32"
    get("org/tiny-GGUF:bf16")
    there = files_of(path.parent)
    assert {name: there[name] for name in SMALL if name in there} == {
        name: data for name, data in SMALL.items() if name[5:9] in ("Q4_K", "BF16", "nt4-")
    }  # fmt: skip
    path.write_bytes(b"cut")
    assert get("org/tiny-GGUF:Q4_K_M").read_bytes() == SMALL["tiny-Q4_K_M.gguf"]
    assert labels() == {"Q4_K_M", "BF16", "cpu/int4-block-32"}


def test_files_with_the_same_content_and_with_other_names_too(hub: FakeHub, tmp_path: Path) -> None:
    twins = {"genai_config.json": b"{}" * 40, "added.json": b"{}" * 40, "model.onnx": b"onnx" * 50}
    hub.add("org/twins", twins)
    folder = get("org/twins")
    assert files_of(folder) == twins
    (tmp_path / "added.json").hardlink_to(folder / "added.json")
    hub.add("org/twins", {**twins, "genai_config.json": b"[]" * 40, "added.json": b"[]" * 40})
    assert files_of(get("org/twins"))["added.json"] == b"[]" * 40
    assert (tmp_path / "added.json").read_bytes() == b"{}" * 40


def test_nothing_is_written_through_a_link_or_into_what_cannot_be_read(
    hub: FakeHub, tmp_path: Path
) -> None:
    folder = get("org/tiny-GGUF:int4-block-32").parent
    folder.rename(tmp_path / "cpu")
    folder.symlink_to(tmp_path / "cpu")
    before = files_of(tmp_path / "cpu")
    hub.repos["org/tiny-GGUF"]["cpu/int4-block-32/model.onnx"] = b"other" * 50
    with pytest.raises(HubError, match="is a link"):
        get("org/tiny-GGUF:int4-block-32")
    assert files_of(tmp_path / "cpu") == before
    record = folder.with_name("library.json")
    record.unlink()
    record.mkdir()
    with pytest.raises(RequestError, match="nothing was changed"):
        get("org/tiny-GGUF:Q4_K_M")
    record.rmdir()
    get("org/tiny-GGUF:Q4_K_M")
    assert labels() == {"Q4_K_M"}


def test_the_commands(hub: FakeHub, command: Any) -> None:
    assert command("models").stderr.startswith("no models in")
    done = command("pull", "org/tiny-GGUF:Q8_0", "--quiet")
    assert (done.returncode, Path(done.stdout.strip()).name) == (0, "tiny-Q8_0.gguf")
    get("org/tiny-GGUF:int4-block-32")
    lines = [line.split() for line in command("models").stdout.splitlines()]
    assert lines == [
        ["org/tiny-GGUF:Q8_0", "90", "kB", "gguf"],
        ["org/tiny-GGUF:cpu/int4-block-32", "20", "kB", "onnx"],
    ]
    shown = json.loads(command("models", "--json").stdout)["models"]
    assert [(row["bytes"], row["whole"]) for row in shown] == [(90_000, True), (20_202, True)]
    assert shown[0]["commit"] == hub.commit("org/tiny-GGUF")
    assert "only with --yes" in command("rm", "tiny-GGUF:Q8_0").stderr  # nobody can be asked
    assert command("rm", "tiny-GGUF:cpu/int4-block-32", "--yes").returncode == 0
    folder = library.library_dir() / "org" / "tiny-GGUF"
    assert files_of(folder).keys() == {"library.json", "tiny-Q8_0.gguf"}
    (folder / "library.json").write_text("{")
    assert "nothing whole" in command("models").stdout
    assert command("rm", "org/tiny-GGUF", "--yes").returncode == 0
    assert not folder.parent.exists()
    assert command("rm", "org/tiny-GGUF", "--yes").returncode == 2


def test_files_that_quantize_pushed(hub: FakeHub, tmp_path: Path) -> None:
    """The manifest comes along, for the files that were pulled, and MODEL is what is loaded."""
    files = files_of(built(tmp_path / "built"))
    hub.add("org/half", {name: data for name, data in files.items() if "onnx" not in name})
    assert get("org/half").name == "tiny-q4_k_m.gguf"  # the other one is not there
    hub.add("org/tiny-built", files)
    path = get("org/tiny-built:q4_k_m")
    assert path.read_bytes() == files["tiny-q4_k_m.gguf"]
    assert [e.recipe for e in load_manifest(path.parent).files] == ["q4_k_m"]
    assert model_file("tiny-built", ModelOptions()).path == path
    folder = get("org/tiny-built:onnx-int4")
    assert [e.recipe for e in load_manifest(path.parent).files] == ["q4_k_m", "onnx-int4"]
    assert model_file("tiny-built:onnx-int4", ModelOptions()).path == folder
    assert library.locate("tiny-built") == str(path.parent)  # for the planner to choose
    assert model_file("tiny-built", ModelOptions(recipe="onnx-int4")).path == folder
    model, build = library.find("tiny-built:q4_k_m") or (None, None)
    assert model is not None
    library.remove(model, build)
    assert [e.recipe for e in load_manifest(path.parent).files] == ["onnx-int4"]


def manifest(path: str, files: dict[str, bytes]) -> bytes:
    sums = dict.fromkeys(files, "0" * 64)
    entry = FileEntry("gguf", "q8_0", 8, path, 3, sums, ModelOrigin("m", "h"), {})
    return Manifest(ModelInfo("m", "L", 1), (entry,)).to_json().encode()


def test_a_manifest_on_the_hub_that_is_none_or_names_files_elsewhere(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "_MOST_MANIFEST", 100_000)
    documents = theirs(tmp_path)
    hidden = {"library.json": b'{"builds": []}' * 9}
    for number, (said, files, refused) in enumerate(
        (
            (manifest(AWAY, {}), {}, False),  # something else's of the same name
            (manifest("/etc/hostname", {}), {}, False),
            (manifest("..", {}), {}, False),
            (manifest("a.gguf", {AWAY[6:]: b""}), {}, False),
            (b"[" * 90_000, {}, False),
            (b"{" + b" " * 100_000 + b"}", {}, False),
            (manifest("library.json", hidden), hidden, True),
            (manifest("manifest.json", {"manifest.json": b""}), {}, True),
        )
    ):
        repo = f"org/odd{number}"
        hub.add(repo, {**files, "a-Q8_0.gguf": b"x" * 90, "manifest.json": said})
        if refused:
            with pytest.raises(ModelError):
                get(repo)
            assert library.read(repo).builds == ()
        else:
            assert get(repo).name == "a-Q8_0.gguf"
    assert max(hub.sent("manifest.json")) < 100_000
    assert files_of(documents) == {"letter.gguf": b"dear"}


def test_two_pulls_at_once_are_both_listed(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes whole while the first downloads."""
    fetch = pulling.fetch_files

    def slowly(*arguments: Any) -> None:
        monkeypatch.setattr(pulling, "fetch_files", fetch)
        get("org/tiny-GGUF:Q4_K_M")
        fetch(*arguments)

    monkeypatch.setattr(pulling, "fetch_files", slowly)
    get("org/tiny-GGUF:Q8_0")
    assert labels() == {"Q4_K_M", "Q8_0"}


# In a thread, as a screen sees it


def job(text: str) -> PullJob:
    made = PullJob(parse_request(text), PATIENT.patience)
    made.start()
    return made


def ended(made: PullJob) -> PullState:
    return until(made.poll, lambda state: state.ended)


def test_a_download_that_is_cancelled_keeps_what_has_arrived(hub: FakeHub) -> None:
    tiny, whole = HubName("org/tiny-GGUF"), len(EIGHT)
    fault = hub.fault(r"^/org/tiny-GGUF/tiny-Q8_0\.gguf$", stall_after=60_000)
    first = job("org/tiny-GGUF:Q8_0")
    assert until(first.poll, lambda state: state.done >= 60_000).total == whole
    first.cancel()
    assert first.poll().cancelled  # at once, though the connection hangs
    assert first.poll().ended
    fault.given_up.set()
    first._thread.join(60)  # when the stalled connection has ended; it asks no second time
    assert not first._thread.is_alive()
    assert len([r for r in hub.requests if r.storage and r.path.endswith("Q8_0.gguf")]) == 1
    assert {b.kept.label: b.arrived for b in contents(tiny).builds}["Q8_0"] == 60_000
    assert library.find("tiny-GGUF") is None  # nothing half is offered
    fault.times = 0
    state = ended(job("org/tiny-GGUF:Q8_0"))
    assert (state.done, state.total, state.error) == (whole, whole, None)
    assert state.path is not None
    assert state.path.read_bytes() == EIGHT
    assert [n for n in hub.sent("Q8_0.gguf") if n] == [60_000, whole - 60_000]
