"""The folder for optimum's exporter: pinned wheels, installed by pip once and checked each time."""

from __future__ import annotations

import hashlib
import os
import queue
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from quantize.errors import ToolError
from quantize.onnx import optimum as overlay
from quantize.onnx.optimum import older_config
from quantize.progress import Reporter
from runtimes.errors import RuntimeMissingError
from runtimes.machine.locks import Lock
from tests.quantize.hub.hubs import Notes


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small wheel, the only place where pip looks; requirements that pin it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel = folder / "pebbles-1.0-py3-none-any.whl"
    info = "pebbles-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pebbles.py", "COUNT = 3\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pebbles\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"pebbles==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setattr(overlay, "REQUIREMENTS", requirements)
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    return folder


def test_it_is_installed_once_and_anew_when_damaged(wheels: Path):
    reporter = Notes()
    folder = overlay.optimum_overlay(reporter)
    module = folder / "pebbles.py"
    assert module.read_text() == "COUNT = 3\n"
    # The second time needs nothing to install from, and bytecode is no damage.
    kept = (wheels / "pebbles-1.0-py3-none-any.whl").rename(wheels / "kept")
    (folder / "pebbles.pyc").write_bytes(b"code")
    assert overlay.optimum_overlay(reporter) == folder
    assert reporter.notes == []
    kept.rename(wheels / "pebbles-1.0-py3-none-any.whl")
    module.unlink()
    assert not overlay.is_whole(folder)
    module.write_text("COUNT = 4\n")
    (folder.parent / ".install-left").mkdir()
    assert overlay.optimum_overlay(reporter) == folder
    assert "damaged: installing it again" in reporter.notes.pop()
    assert module.read_text() == "COUNT = 3\n"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_waiting_for_another_run_that_installs_is_said(wheels: Path):
    begun: queue.Queue[str] = queue.Queue()

    class Stages(Reporter):
        def stage(self, text: str) -> AbstractContextManager[None]:
            begun.put(text)
            return nullcontext()

    root = wheels.parent / "home" / "cache" / "optimum"
    root.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with Lock(root):
            folder = pool.submit(overlay.optimum_overlay, Stages())
            said = begun.get(timeout=60)
        assert overlay.is_whole(folder.result(120))
    assert said == (
        f"waiting for another run (process {os.getpid()}) that installs optimum's exporter"
    )


def test_what_cannot_be_had_is_explained_and_leaves_nothing(wheels: Path):
    wheel = wheels / "pebbles-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(ToolError, match="not the one that was tested"):
        overlay.optimum_overlay(Reporter())
    wheel.unlink()
    with pytest.raises(RuntimeMissingError, match=r"could not be downloaded.*or use --to gguf"):
        overlay.optimum_overlay(Reporter())
    root = wheels.parent / "home" / "cache" / "optimum"
    assert list(root.iterdir()) == []


def test_rotary_settings_are_written_as_transformers_4_reads_them():
    partly = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5}
    older = older_config({"model_type": "gpt_neox", "rope_parameters": partly})
    assert older["rotary_emb_base"] == older["rope_theta"] == 5e4
    assert older["rotary_pct"] == older["partial_rotary_factor"] == 0.5
    assert "rope_scaling" not in older
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
    older = older_config({"rope_parameters": yarn})
    assert older == {
        "rope_theta": 1e6,
        "rotary_emb_base": 1e6,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    }
    assert older_config({"n_embd": 64}) == {"n_embd": 64}
