"""`ingot pull`, `models` and `rm`, against a hub on 127.0.0.1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from app.cli.commands.library import models, rm
from app.cli.commands.library import pull as pull_command
from app.models import library, pulling
from app.models.library import model_file
from app.models.pulling import find_builds, parse_request, pull
from app.options import ModelOptions
from quantize.hub.client import Hub, HubError
from runtimes.errors import ModelError, RequestError
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import AT_ONCE, PATIENT, Notes, files_of

SMALL = {
    "README.md": b"# ready",
    "tiny-Q4_K_M.gguf": b"GGUF four" * 9000,
    "tiny-Q8_0.gguf": b"GGUF eight" * 9000,
    "tiny-BF16-00001-of-00002.gguf": b"GGUF one" * 50,
    "tiny-BF16-00002-of-00002.gguf": b"GGUF two" * 50,
    "mmproj-tiny-F16.gguf": b"an image encoder" * 5,
    "cpu/int4-block-32/genai_config.json": b"{}",
    "cpu/int4-block-32/model.onnx": b"onnx" * 50,
    "cpu/int4-block-32/model.onnx.data": b"data" * 5000,
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    served = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    served.add("org/tiny-GGUF", SMALL)
    yield served
    served.close()


def get(text: str, hub: Hub = PATIENT, notes: Notes | None = None) -> Path:
    return pull(parse_request(text), notes or Notes(), hub)


def command(*arguments: str, stdin: str | None = None) -> Result:
    app = typer.Typer()
    app.command()(models)
    app.command()(pull_command)
    app.command()(rm)
    return CliRunner().invoke(app, arguments, input=stdin)


def test_what_is_in_a_repository():
    names = ("a/M-UD-Q4_K_XL.gguf", "m.iq4_xs.gguf", "m-fp16.gguf", "odd.gguf", "m.imatrix.gguf")
    assert [b.label for b in find_builds(names)] == ["UD-Q4_K_XL", "F16", "IQ4_XS", "ODD".lower()]
    builds = {build.label: build for build in find_builds(SMALL)}
    assert set(builds) == {"Q4_K_M", "Q8_0", "BF16", "cpu/int4-block-32"}
    assert builds["BF16"].main == "tiny-BF16-00001-of-00002.gguf"
    assert len(builds["BF16"].files) == 2
    assert len(builds["cpu/int4-block-32"].files) == 3
    root = find_builds(("genai_config.json", "model.onnx", "sub/x"))
    assert [(b.label, b.main, len(b.files)) for b in root] == [("onnx", "", 2)]


@pytest.mark.parametrize("what", ["Q4_K_M", "q4_k_m", "tiny-Q4_K_M.gguf"])
def test_one_file(hub: FakeHub, what: str):
    path = get(f"org/tiny-GGUF:{what}")
    assert path.read_bytes() == SMALL["tiny-Q4_K_M.gguf"]
    assert path.parent == library.library_dir() / "org" / "tiny-GGUF"
    assert not hub.sent("Q8_0.gguf")  # nothing else came
    assert [p.name for p in path.parent.iterdir() if p != path] == ["library.json"]
    notes = Notes()
    get(f"org/tiny-GGUF:{what}", notes=notes)
    assert "already" in notes.notes[0]
    assert len([n for n in hub.sent("Q4_K_M.gguf") if n]) == 1


def test_folders_and_split_files(hub: FakeHub):
    folder = get("org/tiny-GGUF:int4-block-32")
    assert files_of(folder) == {
        name.rpartition("/")[2]: data for name, data in SMALL.items() if "int4" in name
    }
    first = get("org/tiny-GGUF:bf16")
    assert sorted(p.name for p in first.parent.glob("*BF16*")) == [
        "tiny-BF16-00001-of-00002.gguf",
        "tiny-BF16-00002-of-00002.gguf",
    ]


def test_two_files_with_the_same_content(hub: FakeHub):
    twins = {"genai_config.json": b"{}", "added_tokens.json": b"{}", "model.onnx": b"onnx" * 50}
    hub.add("org/twins", twins)
    assert files_of(get("org/twins")) == twins


def test_when_it_is_not_clear_what_is_meant(hub: FakeHub):
    with pytest.raises(RequestError) as caught:
        get("org/tiny-GGUF")
    lines = str(caught.value).splitlines()
    assert lines[0] == "org/tiny-GGUF has 4 models; say which as org/tiny-GGUF:BF16"
    assert lines[2].split() == ["Q4_K_M", "81", "kB", "tiny-Q4_K_M.gguf"]
    assert caught.value.exit_code == 2
    with pytest.raises(RequestError, match=r"has no 'Q4_K_S' \(did you mean Q4_K_M\?\)"):
        get("org/tiny-GGUF:Q4_K_S")
    hub.add("org/two", {"a-Q8_0.gguf": b"x" * 90, "b-Q8_0.gguf": b"y" * 90})
    with pytest.raises(RequestError, match="2 models called Q8_0; give a file's name"):
        get("org/two:Q8_0")
    assert get("org/two:b-Q8_0.gguf").read_bytes() == b"y" * 90
    hub.add("org/original", {"config.json": b"{}", "model.safetensors": b"x" * 90})
    with pytest.raises(ModelError, match=r"no ready files, .*`quantize org/original`"):
        get("org/original")
    with pytest.raises(RequestError, match="ORG/NAME"):
        parse_request("../../etc")


def test_an_interrupted_pull_goes_on(hub: FakeHub):
    whole = len(SMALL["tiny-Q8_0.gguf"])
    fault = hub.fault(r"^/org/tiny-GGUF/tiny-Q8_0\.gguf$", cut_after=30_000)
    with pytest.raises(HubError, match="resumes"):
        get("org/tiny-GGUF:Q8_0", AT_ONCE)
    fault.times = 0
    assert library.find("tiny-GGUF") is None  # nothing half is offered
    assert get("org/tiny-GGUF:Q8_0").read_bytes() == SMALL["tiny-Q8_0.gguf"]
    assert [n for n in hub.sent("Q8_0.gguf") if n] == [30_000, whole - 30_000]
    fault = hub.fault(r"^/org/tiny-GGUF/tiny-Q4_K_M\.gguf$", flip=True)
    with pytest.raises(HubError, match="another checksum"):
        get("org/tiny-GGUF:Q4_K_M")
    assert [build.label for build in library.read("org/tiny-GGUF").builds] == ["Q8_0"]


def test_names_in_the_library(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    four, eight = get("org/tiny-GGUF:Q4_K_M"), get("org/tiny-GGUF:Q8_0")
    monkeypatch.chdir(tmp_path)
    assert library.locate("org/tiny-GGUF:q8_0") == str(eight)
    assert library.locate("tiny-gguf:Q4_K_M") == str(four)
    assert library.locate(str(four)) == str(four)
    with pytest.raises(RequestError, match="has 2 models; say which"):
        library.locate("tiny-GGUF")
    with pytest.raises(RequestError, match="did you mean Q4_K_M"):
        library.locate("tiny-GGUF:Q4_K_L")
    with pytest.raises(ModelError, match="`ingot pull org/other:Q8_0`"):
        library.locate("org/other:Q8_0")
    hub.add("else/tiny-GGUF", SMALL)
    get("else/tiny-GGUF:Q8_0")
    with pytest.raises(RequestError, match="else/tiny-GGUF and org/tiny-GGUF"):
        library.locate("tiny-GGUF:Q8_0")
    eight.write_bytes(b"cut")
    with pytest.raises(ModelError, match=r"another size; `ingot pull org/tiny-GGUF:Q8_0`"):
        library.locate("org/tiny-GGUF:Q8_0")
    assert get("org/tiny-GGUF:Q8_0").read_bytes() == SMALL["tiny-Q8_0.gguf"]
    assert [b.label for b in library.read("org/tiny-GGUF").builds] == ["Q4_K_M", "Q8_0"]


def test_a_damaged_record(hub: FakeHub):
    get("org/tiny-GGUF:Q8_0")
    hub.add("org/other", SMALL)
    path = get("org/other:Q8_0")
    (library.library_dir() / "org" / "tiny-GGUF" / "library.json").write_text("{")
    assert library.locate("other") == str(path)  # the others are not in doubt
    with pytest.raises(ModelError, match="`ingot pull org/tiny-GGUF` again"):
        library.locate("tiny-GGUF")
    assert "nothing whole" in command("models").stdout
    assert get("org/tiny-GGUF:Q8_0").is_file()
    assert library.locate("tiny-GGUF").endswith("tiny-Q8_0.gguf")


def test_the_commands(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    assert command("models").output.startswith("no models in")
    done = command("pull", "org/tiny-GGUF:Q8_0", "--quiet")
    assert (done.exit_code, Path(done.stdout.strip()).name) == (0, "tiny-Q8_0.gguf")
    get("org/tiny-GGUF:int4-block-32")
    lines = [line.split() for line in command("models").stdout.splitlines()]
    assert lines == [
        ["org/tiny-GGUF:Q8_0", "90", "kB", "gguf"],
        ["org/tiny-GGUF:cpu/int4-block-32", "20", "kB", "onnx"],
    ]
    shown = json.loads(command("models", "--json").stdout)["models"]
    assert [(row["bytes"], row["whole"]) for row in shown] == [(90_000, True), (20_202, True)]
    assert shown[0]["commit"] == hub.commit("org/tiny-GGUF")
    refused = command("rm", "tiny-GGUF:Q8_0")
    assert isinstance(refused.exception, RequestError)  # nobody can be asked
    assert "--yes" in str(refused.exception)
    assert command("rm", "tiny-GGUF:cpu/int4-block-32", "--yes").exit_code == 0
    folder = library.library_dir() / "org" / "tiny-GGUF"
    assert sorted(p.name for p in folder.iterdir()) == ["cpu", "library.json", "tiny-Q8_0.gguf"]
    assert command("rm", "org/tiny-GGUF", "--yes").exit_code == 0
    assert not folder.parent.exists()
    assert isinstance(command("rm", "org/tiny-GGUF", "--yes").exception, RequestError)


def test_files_that_quantize_pushed(hub: FakeHub, pebble_built: Path):
    """The manifest comes along, for the files that were pulled, and MODEL is what is loaded."""
    from quantize.manifest import load_manifest

    entry = load_manifest(pebble_built).entry("q4_k_m")
    assert entry is not None
    names = ("manifest.json", entry.path)
    files = {n: d for n, d in files_of(pebble_built).items() if n in names or "onnx-int4" in n}
    hub.add("org/pebble-built", files)
    path = get("org/pebble-built:q4_k_m")
    assert path.read_bytes() == files[entry.path]
    assert [e.recipe for e in load_manifest(path.parent).files] == ["q4_k_m"]
    assert model_file("pebble-built", ModelOptions()).path == path
    folder = get("org/pebble-built:onnx-int4")
    assert [e.recipe for e in load_manifest(path.parent).files] == ["q4_k_m", "onnx-int4"]
    assert model_file("pebble-built:onnx-int4", ModelOptions()).path == folder
    assert library.locate("pebble-built") == str(path.parent)  # for the planner to choose
    assert model_file("pebble-built", ModelOptions(recipe="onnx-int4")).path == folder
    model, build = library.find("pebble-built:q4_k_m") or (None, None)
    assert model is not None
    library.remove(model, build)
    assert [e.recipe for e in load_manifest(path.parent).files] == ["onnx-int4"]


def _theirs(tmp_path: Path) -> Path:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter.gguf").write_text("dear")
    return tmp_path / "documents"


@pytest.mark.parametrize(
    "change",
    [
        {"main": "../../../../documents/letter.gguf"},
        {"main": "/etc/hostname"},
        {"main": ""},
        {"main": 7, "bytes": {"": 1}},
        {"bytes": {"../../../../documents/letter.gguf": 4}},
        {"bytes": {"a\x1b]0;x\x07": 4}},
        {"sha256": {"../../../../documents/letter.gguf": "0" * 64}},
        {"bytes": {"x": 1e999}},
        {"bytes": {"library.json": 4}},
        {"bytes": {"Manifest.json/x": 4}},
    ],
)
def test_a_record_that_names_files_elsewhere(
    hub: FakeHub, tmp_path: Path, change: dict[str, object]
):
    theirs = _theirs(tmp_path)
    get("org/tiny-GGUF:Q8_0")
    get("org/tiny-GGUF:Q4_K_M")
    record = library.library_dir() / "org" / "tiny-GGUF" / "library.json"
    data = json.loads(record.read_text())
    data["builds"][0] |= change
    record.write_text(json.dumps(data))
    assert library.read("org/tiny-GGUF").builds == ()
    with pytest.raises(ModelError, match="holds nothing whole"):
        library.locate("tiny-GGUF")
    assert command("rm", "org/tiny-GGUF", "--yes").exit_code == 0
    assert not record.exists()
    assert files_of(theirs) == {"letter.gguf": b"dear"}


def test_a_record_that_is_nested(hub: FakeHub):
    get("org/tiny-GGUF:Q8_0")
    record = library.library_dir() / "org" / "tiny-GGUF" / "library.json"
    record.write_text('{"builds": ' + "[" * 50_000)
    assert library.read("org/tiny-GGUF").builds == ()


def test_nothing_is_removed_or_written_through_a_link(hub: FakeHub, tmp_path: Path):
    theirs = _theirs(tmp_path)
    get("org/tiny-GGUF:Q8_0")
    get("org/tiny-GGUF:int4-block-32")
    model = library.read("org/tiny-GGUF")
    folder = model.folder
    (folder / "cpu").rename(tmp_path / "cpu")
    (folder / "cpu").symlink_to(tmp_path / "cpu")
    before = files_of(tmp_path / "cpu")
    with pytest.raises(RequestError, match="is a link"):
        library.remove(model, model.builds[1])
    assert library.read("org/tiny-GGUF") == model
    hub.repos["org/tiny-GGUF"]["cpu/int4-block-32/model.onnx"] = b"other" * 50
    with pytest.raises(HubError, match="is a link"):
        get("org/tiny-GGUF:int4-block-32")
    assert files_of(tmp_path / "cpu") == before
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    with pytest.raises(RequestError, match="is a link"):
        library.remove(model)
    assert folder.is_symlink()
    assert files_of(theirs) == {"letter.gguf": b"dear"}


def _manifest(path: str, files: dict[str, bytes]) -> bytes:
    from quantize.manifest import FileEntry, Manifest, ModelInfo, ModelOrigin

    sums = dict.fromkeys(files, "0" * 64)
    entry = FileEntry("gguf", "q8_0", 8, path, 3, sums, ModelOrigin("m", "h"), {})
    return Manifest(ModelInfo("m", "L", 1), (entry,)).to_json().encode()


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("../../../../documents/letter.gguf", {}),
        ("/etc/hostname", {}),
        ("..", {}),
        ("library.json", {"library.json": b'{"builds": []}' * 9}),
        ("manifest.json", {"manifest.json": b""}),
        ("a.gguf", {"../../documents/letter.gguf": b""}),
    ],
)
def test_a_manifest_on_the_hub_that_names_files_elsewhere(
    hub: FakeHub, tmp_path: Path, path: str, files: dict[str, bytes]
):
    theirs = _theirs(tmp_path)
    there = {name: data for name, data in files.items() if ".." not in name and data}
    hub.add("org/odd", {**there, "a-Q8_0.gguf": b"x" * 90, "manifest.json": _manifest(path, files)})
    try:
        made = get("org/odd")
    except ModelError:
        assert library.read("org/odd").builds == ()
    else:  # the manifest is something else's of the same name
        assert made.name == "a-Q8_0.gguf"
    assert files_of(theirs) == {"letter.gguf": b"dear"}


@pytest.mark.parametrize("said", [b"[" * 90_000, b"{" + b" " * 40_000_000 + b"}"])
def test_a_manifest_on_the_hub_that_is_nested_or_huge(hub: FakeHub, said: bytes):
    hub.add("org/odd", {"a-Q8_0.gguf": b"x" * 90, "manifest.json": said})
    assert get("org/odd").name == "a-Q8_0.gguf"
    assert len(said) < 10**6 or not [size for size in hub.sent("manifest.json") if size > 10**6]


def test_a_file_with_another_name_too_keeps_its_content(hub: FakeHub, tmp_path: Path):
    twins = {"genai_config.json": b"{}" * 40, "added.json": b"{}" * 40, "model.onnx": b"onnx" * 50}
    hub.add("org/twins", twins)
    folder = get("org/twins")
    (tmp_path / "kept").hardlink_to(folder / "genai_config.json")
    (tmp_path / "kept too").hardlink_to(folder / "added.json")
    hub.add("org/twins", {**twins, "genai_config.json": b"[]" * 40, "added.json": b"[]" * 40})
    assert files_of(get("org/twins"))["added.json"] == b"[]" * 40
    assert {(tmp_path / name).read_bytes() for name in ("kept", "kept too")} == {b"{}" * 40}


def test_two_pulls_at_once_are_both_listed(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    """The second comes whole while the first downloads."""
    fetch = pulling.fetch_files

    def slowly(*arguments: Any) -> None:
        monkeypatch.setattr(pulling, "fetch_files", fetch)
        get("org/tiny-GGUF:Q4_K_M")
        fetch(*arguments)

    monkeypatch.setattr(pulling, "fetch_files", slowly)
    get("org/tiny-GGUF:Q8_0")
    assert {build.label for build in library.read("org/tiny-GGUF").builds} == {"Q4_K_M", "Q8_0"}


def test_a_record_that_cannot_be_read_is_not_replaced(hub: FakeHub):
    """A folder in its place is such, also for root."""
    first = get("org/tiny-GGUF:Q8_0")
    model = library.read("org/tiny-GGUF")
    record = model.folder / "library.json"
    record.rename(record.with_name("kept"))
    record.mkdir()
    with pytest.raises(RequestError, match="nothing was changed"):
        get("org/tiny-GGUF:Q4_K_M")
    with (
        pytest.raises(RequestError, match="nothing was changed"),
        library.changing("org/tiny-GGUF"),
    ):
        pass
    assert record.is_dir()
    assert first.is_file()
    record.rmdir()
    record.with_name("kept").rename(record)
    get("org/tiny-GGUF:Q4_K_M")
    assert {build.label for build in library.read("org/tiny-GGUF").builds} == {"Q4_K_M", "Q8_0"}
