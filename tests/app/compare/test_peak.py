"""The peak is what a process has had, not what it has."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import psutil

from app.compare.peak import PeakMemory
from quantize.quality import peak

_CHILD = "x = bytearray(120_000_000); del x; print('freed', flush=True); input()"


def test_memory_that_was_given_back_counts():
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        memory = PeakMemory()
        found = memory.look(child.pid)
        now = psutil.Process(child.pid).memory_info().rss
        child.communicate(b"\n")
    assert found is not None
    assert now < 100_000_000 < 120_000_000 <= found < 200_000_000
    assert memory.look(child.pid) == found  # it is gone: the last one known


def test_without_the_kernels_peak_the_largest_size_seen_counts(monkeypatch):
    monkeypatch.setattr(peak, "_PEAK", re.compile("no such line"))
    memory = PeakMemory()
    assert memory.look(None) is None
    first = memory.look(os.getpid())
    assert first is not None
    assert abs(first / psutil.Process().memory_info().rss - 1) < 0.5
