"""The peak is what a process has had, not what it has."""

import os
import re
import subprocess
import sys

import psutil

from quantize.quality import peak
from quantize.quality.peak import peak_resident

_CHILD = "x = bytearray(120_000_000); del x; print('freed', flush=True); input()"


def test_memory_that_was_given_back_counts():
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        found = peak_resident(child.pid)
        now = psutil.Process(child.pid).memory_info().rss
        child.communicate(b"\n")
    assert now < 100_000_000 < 120_000_000 <= found < 200_000_000
    assert peak_resident(child.pid) == 0  # it is gone


def test_without_the_kernels_peak_the_largest_size_seen_counts(monkeypatch):
    monkeypatch.setattr(peak, "_PEAK", re.compile("no such line"))
    first = peak_resident(os.getpid())
    assert abs(first / psutil.Process().memory_info().rss - 1) < 0.5
