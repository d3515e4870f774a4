"""What a plan is made for: the machine as the self-tests have found it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from app.models.planning import task_for
from runtimes.backend import Device
from runtimes.machine.selftest import ensure
from runtimes.machine.state_file import load_state, save_entry


def test_the_gpus_of_a_task_are_those_that_were_listed(home: Path) -> None:
    (home / "state" / "selftest.json").unlink()
    assert not task_for("chat", "balanced").gpus  # nothing is known, and nothing is tested
    assert load_state("selftest") == {}
    health = ensure("llamacpp")
    (key,) = load_state("selftest")
    discrete = Device("Vulkan0", "of any maker", 2**30, 2**30)
    cases = (((discrete,), {"llamacpp"}), ((replace(discrete, auto=False),), set()))
    for devices, there in cases:
        save_entry("selftest", key, asdict(replace(health, devices=devices)), 1)
        assert task_for("chat", "balanced").gpus == there
