"""Models in several GGUF files: counted whole, loaded, and refused where a part is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.models.catalog import catalog
from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.errors import ModelError
from runtimes.models.memory import estimate
from runtimes.models.modelfile import fingerprint
from runtimes.models.registry import read_model
from runtimes.planner.known import fingerprint_of
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings
from tests.runtimes.models.split_gguf import split_gguf


@pytest.fixture
def parts(gguf: Path, tmp_path: Path) -> list[Path]:
    return split_gguf(gguf, tmp_path, (4, 10))


@pytest.mark.parametrize("counts", [(4, 10), (0, 10)])  # gguf-split --no-tensor-first-split
def test_a_split_model_is_the_whole_model(gguf: Path, tmp_path: Path, counts: tuple[int, int]):
    first, *_ = parts = split_gguf(gguf, tmp_path, counts)
    whole, model = read_model(gguf), read_model(first)
    assert model.nbytes == sum(part.stat().st_size for part in parts)
    assert model.quantization == whole.quantization
    extra = model.nbytes - whole.nbytes
    asked = RunnerSettings(slots=2, context=256)
    assert estimate(model, asked).total == estimate(whole, asked).total + extra
    params, prompts = SamplingParams(max_tokens=24), [[5, 6, 7, 8], [1, 100, 200]]
    settings = RunnerSettings(slots=2, context=256, reproducible=True)
    with Engine.load(gguf, settings) as engine, Engine.load(first, settings) as other:
        wanted, got = (one.generate(prompts, params) for one in (engine, other))
    assert [done.token_ids for done in got] == [done.token_ids for done in wanted]


def test_every_part_counts_in_the_fingerprint(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    model = read_model(parts[0])
    before = fingerprint(model)
    assert fingerprint_of(model) == before
    data = bytearray(parts[2].read_bytes())
    data[-40] ^= 1
    parts[2].write_bytes(data)
    assert fingerprint(model) != before
    assert fingerprint_of(model) == fingerprint(model), "what is remembered is of all parts"


def test_a_part_that_is_not_there_or_not_the_first(parts: list[Path], gguf: Path, tmp_path: Path):
    with pytest.raises(ModelError, match=r"give the first, .*model-00001-of-00003\.gguf"):
        read_model(parts[1])
    for part, content, said in (
        (parts[1], parts[2].read_bytes(), "00002-of-00003.gguf is not what its name says"),
        (parts[2], parts[2].read_bytes()[:-1000], "00003-of-00003.gguf is truncated"),
    ):
        kept = part.read_bytes()
        part.write_bytes(content)
        with pytest.raises(ModelError, match=said):
            read_model(parts[0])
        part.write_bytes(kept)
    other = split_gguf(gguf, tmp_path, (3, 10), name="other")
    shutil.copy(other[2], parts[2])
    shutil.copy(other[1], parts[1])
    with pytest.raises(ModelError, match="do not belong together"):
        read_model(parts[0])
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"there is no model-00002-of-00003\.gguf"):
        read_model(parts[0])
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelError, match="finds the others by name"):
        read_model(renamed)


def test_a_folder_with_a_split_model_holds_one(parts: list[Path], tmp_path: Path):
    assert resolve(tmp_path) == parts[0]
    (entry,) = (one for one in catalog([tmp_path]) if one.path.parent == tmp_path)
    assert (entry.path, entry.bytes) == (parts[0], read_model(parts[0]).nbytes)
