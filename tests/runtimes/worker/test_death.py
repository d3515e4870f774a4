"""Whether a kill was about memory: files as Linux writes them, and the machine's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimes.machine import cgroup
from runtimes.worker import recovery
from runtimes.worker.recovery import Cause, OomDetector, explain, oom_kills
from tests.support import set_clock

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {count}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n"
VMSTAT = "nr_free_pages 3297000\noom_kill {count}\nnuma_hit 17\n"

V2 = "0::/user.slice/app.scope\n"
V1 = "5:devices:/\n4:cpu,memory:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        (V2, {"sys/fs/cgroup/user.slice/app.scope/memory.events": EVENTS}, 7),
        (V2, {"sys/fs/cgroup/memory.events": EVENTS}, 7),  # within a container
        (V1, {"sys/fs/cgroup/memory/docker/abc/memory.oom_control": CONTROL}, 7),
        (V1, {"sys/fs/cgroup/memory/memory.oom_control": CONTROL}, 7),
        (V2, {}, 9),  # what the machine counts
        ("", {"proc/vmstat": "nr_free_pages 3297000\n"}, None),
    ],
)
def test_whom_the_system_killed(tmp_path: Path, monkeypatch, group, files, expected):
    for name, text in {"proc/self/cgroup": group, "proc/vmstat": VMSTAT, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(count=9 if name == "proc/vmstat" else 7))
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    assert oom_kills() == expected


def test_the_system_killed_somebody_lately_or_long_ago(monkeypatch):
    counts = iter([3, 3, 4, 4])
    now = [100.0]
    monkeypatch.setattr(recovery, "oom_kills", lambda: next(counts))
    set_clock(monkeypatch, recovery, lambda: now[0])
    detector = OomDetector()
    detector.look()
    assert detector.cause() is Cause.MEMORY
    counts = iter([4] * 20)
    for _ in range(15):
        now[0] += 1
        detector.look()
    assert detector.cause() is not Cause.MEMORY


def test_a_kill_means_what_the_memory_says(monkeypatch):
    causes = []
    for scarce in (0.0, 1.0):  # nothing, anything counts as little
        monkeypatch.setattr(recovery, "_SCARCE", scarce)
        causes.append(explain(-9, ["x"], OomDetector().cause()).cause)
    causes += [explain(code, [], Cause.MEMORY).cause for code in (-9, -1, -11)]
    assert causes == [Cause.KILLED, Cause.SCARCE, Cause.MEMORY, Cause.KILLED, Cause.CRASH]
