from __future__ import annotations

from pathlib import Path

import pytest

from quantize.errors import UsageError
from quantize.hub.client import HubError
from quantize.hub.transfer import push, require_push
from quantize.manifest import write_manifest
from runtimes.errors import ModelError
from tests.quantize.entries import entry_in, manifest_of
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import Notes


@pytest.fixture(autouse=True)
def _may_write(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_good")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage is not faked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "built"
    (out / "tiny-onnx-int4").mkdir(parents=True)
    (out / "tiny-Q4_0.gguf").write_bytes(b"GGUF" + bytes(range(200)))
    (out / "tiny-onnx-int4" / "model.onnx").write_bytes(b"onnx" * 50)
    (out / "tiny-onnx-int4" / "genai_config.json").write_text("{}")
    (out / "README.md").write_text("# tiny")
    (out / ".partial-7").write_bytes(b"half" * 50)
    (out / "notes.txt").write_text("my own")
    files = (("q4_0", "tiny-Q4_0.gguf"), ("onnx-int4", "tiny-onnx-int4"))
    write_manifest(out, manifest_of(*(entry_in(out, recipe, path) for recipe, path in files)))
    return out


def test_what_is_published_is_uploaded(hub: FakeHub, folder: Path):
    notes = Notes()
    url = push(folder, "me/tiny", notes)
    assert url.endswith("/me/tiny")
    assert set(hub.repos["me/tiny"]) == {
        "manifest.json",
        "README.md",
        "tiny-Q4_0.gguf",
        "tiny-onnx-int4/model.onnx",
        "tiny-onnx-int4/genai_config.json",
    }
    for name, data in hub.repos["me/tiny"].items():
        assert data == (folder / name).read_bytes()
    assert hub.private["me/tiny"]
    assert "private" in notes.notes[0]
    # Into one that is there: no word of privacy, and other files stay.
    hub.repos["me/tiny"]["LICENSE"] = b"x"
    notes = Notes()
    push(folder, "me/tiny", notes)
    assert notes.notes == []
    assert "LICENSE" in hub.repos["me/tiny"]


def test_what_stands_in_the_way(hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch):
    require_push("me/tiny")
    with pytest.raises(UsageError, match="ORG/NAME"):
        push(folder, "tiny", Notes())
    hub.fault("^/api/repos/create", status=403)
    with pytest.raises(HubError, match="may not write to me/tiny"):
        push(folder, "me/tiny", Notes())
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(HubError, match="does not accept the token"):
        require_push("me/tiny")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with pytest.raises(UsageError, match="set HF_TOKEN"):
        push(folder, "me/tiny", Notes())
    assert hub.repos == {}


def test_a_file_that_is_listed_and_gone(hub: FakeHub, folder: Path):
    (folder / "tiny-Q4_0.gguf").unlink()
    with pytest.raises(ModelError, match="is missing"):
        push(folder, "me/tiny", Notes())
    assert hub.repos == {}


@pytest.mark.parametrize("name", ["README.md", "tiny-Q4_0.gguf", "tiny-onnx-int4/vocab.json"])
def test_no_file_of_this_machine_is_uploaded_through_a_link(
    hub: FakeHub, folder: Path, tmp_path: Path, name: str
):
    secret = tmp_path / "id_rsa"
    secret.write_bytes(b"GGUF" + bytes(range(200)))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(ModelError, match="link"):
        push(folder, "me/tiny", Notes())
    assert hub.repos == {}


def test_names_are_no_patterns(hub: FakeHub, folder: Path):
    (folder / "tiny-Q4_0.gguf").rename(folder / "*")
    write_manifest(folder, manifest_of(entry_in(folder, "q4_0", "*")))
    push(folder, "me/tiny", Notes())
    assert set(hub.repos["me/tiny"]) == {"manifest.json", "README.md", "*"}
