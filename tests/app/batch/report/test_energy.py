"""What the power of GPUs comes to over a job, and when nothing is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.batch.report.figures import JobFigures
from app.batch.schedule.engines import VISIBLE
from app.batch.schedule.run_engines import energy_of
from runtimes.machine.gpus import Gpu, GpuReader, GpuWatch, tokens_per_joule

GPUS = [Gpu(i, f"GPU {i}", 100, 40, "9.0", "1", watts=100.0 * (i + 1)) for i in range(2)]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> GpuWatch:
    """Both GPUs for ten seconds: the second one needed nothing in the last five."""
    monkeypatch.delenv(VISIBLE, raising=False)
    watch = GpuWatch()
    watch.reader.missing = ""  # as where there is a driver
    watch.add(GPUS, 5.0)
    watch.add([GPUS[0], replace(GPUS[1], watts=0.0)], 5.0)
    return watch


def test_joules_of_all_gpus_of_the_job(watch: GpuWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    found = energy_of(watch, 500)
    assert found is not None
    assert (found.joules, found.watts, found.gpus) == (2000, 200, ("GPU 0", "GPU 1"))
    assert found.tokens_per_joule == tokens_per_joule(50, 200) == 0.25
    line = found.line()
    assert "2,000 J (200 W), 0.25 answer tokens per joule; the power that NVIDIA's" in line
    rates = {"prefill_tps": 0.0, "decode_tps": 0.0, "memory_bytes": 0}
    counts = {"rows": 1, "answered": 1, "slots": 2, "completion_tokens": 500}
    for energy in (found, None):
        summary = JobFigures(**counts, **rates, energy=energy)
        assert JobFigures.from_end(json.loads(json.dumps(summary.end_json()))) == summary
        assert (line in summary.end_lines()) == (energy is not None)
    monkeypatch.setenv(VISIBLE, "1")
    found = energy_of(watch, 0)
    assert found is not None
    assert (found.joules, found.tokens_per_joule, found.gpus) == (1000, None, ("GPU 1",))
    monkeypatch.setenv(VISIBLE, "7")  # of which nobody tells: the others' energy is not the job's
    assert energy_of(watch, 500) is None


class Driver(GpuReader):
    """One that tells of two GPUs, where there is none."""

    def read(self) -> tuple[Gpu, ...]:
        return tuple(GPUS)


def test_a_watch_reads_to_the_end() -> None:
    driver = Driver()
    driver.missing = ""
    with GpuWatch(3600.0, driver) as watch:
        pass
    assert [use.name for use in watch.uses.values()] == ["GPU 0", "GPU 1"]
    for use, gpu in zip(watch.uses.values(), GPUS, strict=True):
        assert gpu.watts is not None
        assert use.joules == gpu.watts * use.told_s > 0


def test_nothing_is_said_where_not_every_gpu_tells(watch: GpuWatch) -> None:
    watch.reader.missing = "the NVIDIA driver does not answer"
    assert energy_of(watch, 500) is None
    watch.reader.missing = ""
    watch.add([Gpu(2, "one that does not tell", 100, 40, "9.0", "1")], 5.0)
    assert energy_of(watch, 500) is None
    assert energy_of(GpuWatch(), 500) is None
