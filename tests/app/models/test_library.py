"""Models in the library: by which names they are found, what is damaged, how they go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.models import library
from app.models.library import Kept, locate, pick
from runtimes.errors import ModelError, RequestError
from tests.app.models.kept import keep
from tests.quantize.hub.hubs import files_of

pytestmark = pytest.mark.usefixtures("home")

BUILDS = {
    "Q4_K_M": {"tiny-Q4_K_M.gguf": b"GGUF four"},
    "Q8_0": {"tiny-Q8_0.gguf": b"GGUF eight"},
    "cpu/int4": {"cpu/int4/model.onnx": b"onnx", "cpu/int4/genai_config.json": b"{}"},
}
RECORD = "library.json"


def test_what_picks_a_build() -> None:
    def kept(label: str, main: str) -> Kept:
        return Kept(label, "gguf", main, "c", {main: 81_000}, {})

    four, folder = kept("Q4_K_M", "a/tiny.gguf"), kept("cpu/int4", "cpu/int4")
    twins = (kept("Q8_0", "a-Q8_0.gguf"), kept("Q8_0", "b-Q8_0.gguf"))
    builds = (four, folder, *twins)
    assert pick([four], None, "x") is four
    for what, build in (
        ("q4_k_m", four),
        ("a/tiny.gguf", four),
        ("tiny.gguf", four),
        ("int4/", folder),
        ("b-q8_0.gguf", twins[1]),
    ):
        assert pick(builds, what, "x") is build
    for asked, said in (
        (None, "x has 4 models; say which as x:Q4_K_M"),
        ("Q4_K_S", "x has no 'Q4_K_S' (did you mean Q4_K_M?)"),
        ("Q8_0", "x has 2 models called Q8_0; give a file's name"),
    ):
        with pytest.raises(RequestError) as caught:
            pick(builds, asked, "x")
        first, *listed = str(caught.value).splitlines()
        assert first == said
        assert listed[0].split() == ["Q4_K_M", "81", "kB", "a/tiny.gguf"]


def test_names_in_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = keep("org/tiny-GGUF", BUILDS)
    four, eight, _ = (str(model.path(build)) for build in model.builds)
    for name, path in (("org/tiny-GGUF:q8_0", eight), ("tiny-gguf:Q4_K_M", four), (four, four)):
        assert locate(name) == path
    keep("else/tiny-GGUF", BUILDS)
    Path(eight).write_bytes(b"cut")
    refused: tuple[tuple[str, type[Exception], str], ...] = (
        ("org/tiny-GGUF", RequestError, "has 3 models; say which"),
        ("tiny-GGUF:Q4_K_M", RequestError, "may be else/tiny-GGUF and org/tiny-GGUF"),
        ("org/other:Q8_0", ModelError, "`ingot pull org/other:Q8_0`"),
        ("org/tiny-GGUF:Q8_0", ModelError, "another size; `ingot pull org/tiny-GGUF:Q8_0`"),
    )
    for name, error, said in refused:
        with pytest.raises(error, match=said):
            locate(name)


def theirs(tmp_path: Path) -> Path:
    """Somebody's file, and nothing of the library's."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter.gguf").write_text("dear")
    return tmp_path / "documents"


AWAY = "../../../../documents/letter.gguf"


def test_a_damaged_record_or_one_that_names_files_elsewhere(tmp_path: Path) -> None:
    """What a record says of its first build, or a text in its place: nothing whole is there then,
    and the model can be removed, without a file of anybody else's."""
    documents = theirs(tmp_path)
    changes: tuple[str | dict[str, Any], ...] = (
        *("{", '{"builds": ' + "[" * 50_000),
        *({"main": AWAY}, {"main": "/etc/hostname"}, {"main": ""}),
        {"main": 7, "bytes": {"": 1}},
        *({"bytes": {AWAY: 4}}, {"bytes": {"a\x1b]0;x\x07": 4}}, {"sha256": {AWAY: "0" * 64}}),
        *({"bytes": {"x": 1e999}}, {"bytes": {RECORD: 4}}, {"bytes": {"Manifest.json/x": 4}}),
    )
    other = keep("org/other", {"Q8_0": BUILDS["Q8_0"]})
    for change in changes:
        record = keep("org/tiny", BUILDS).folder / RECORD
        said = change
        if isinstance(change, dict):
            data = json.loads(record.read_text())
            data["builds"][0] |= change
            said = json.dumps(data)
        record.write_text(str(said))
        assert library.read("org/tiny").builds == ()
        with pytest.raises(ModelError, match="nothing whole; `ingot pull org/tiny` again"):
            locate("tiny")
        found = library.find("tiny")
        assert found is not None
        library.remove(*found)
        assert not record.exists()
    assert locate("other") == str(other.path(other.builds[0]))  # the others are not in doubt
    assert files_of(documents) == {"letter.gguf": b"dear"}


def test_nothing_is_removed_through_a_link(tmp_path: Path) -> None:
    model = keep("org/tiny", BUILDS)
    for name, build in (("cpu", model.builds[2]), (".", None)):
        folder = model.folder / name
        before = files_of(folder)
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
        with pytest.raises(RequestError, match="is a link"):
            library.remove(model, build)
        assert library.read("org/tiny") == model
        assert files_of(folder) == before
        folder.unlink()
        (tmp_path / "moved").rename(folder)


def test_a_record_that_cannot_be_read_is_not_replaced() -> None:
    """A folder in its place is such, also for root."""
    record = keep("org/tiny", BUILDS).folder / RECORD
    record.unlink()
    record.mkdir()
    with pytest.raises(RequestError, match="nothing was changed"), library.changing("org/tiny"):
        pass
    assert record.is_dir()
