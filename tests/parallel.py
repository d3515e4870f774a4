"""The suite on several cores (`pytest -n 2`): each worker keeps to its own cores.

Threads that wait for each other crawl where the processor is shared, and so would two engines that
both take all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

# Tests that share models which take minutes to make, or import torch, are two groups of about the
# same length, and come first.
_TOGETHER = ("quantize/build/", "quantize/", "assets/")
_GROUPS = ("quantize/build/", "quantize/", "quantize/")
# Then the files that take longest (8 seconds and more), in this order; the others fill the time
# beside the last of them, so that all workers end at about the same time.
_LONG = (
    "real/test_smollm2",
    "app/cli/test_hostile_terminal",
    "app/serve/test_hostile_clients",
    "app/tui/test_find",
    "app/tui/test_batch_screen",
    "app/serve/batches/test_work",
    "app/batch/test_tasks",
    "runtimes/engine/test_draft",
    "app/tui/test_quantize_run",
    "app/serve/test_prefixes",
    "app/batch/test_reproducible",
    "app/serve/batches/test_client",
    "app/bench/test_bench",
    "app/tui/test_compare_prompts",
    "app/batch/test_crashes",
    "app/cli/test_foreign_folder",
    "app/serve/batches/test_kills",
    "app/serve/test_lifecycle",
    "runtimes/engine/test_reproducible",
    "app/doctor/test_verify",
    "app/tui/test_batch_rows",
    "runtimes/models/test_memory",
    "app/tui/test_quantize_form",
    "runtimes/worker/test_deaths",
    "app/cli/test_plan_command",
    "app/tui/test_drafts_kept",
    "app/batch/test_command",
    "runtimes/templates/test_templates",
    "runtimes/engine/test_engine",
    "app/batch/test_output",
    "app/tui/test_by_mouse",
    "app/tui/test_terminal",
    "app/tui/test_quantize_screen",
    "runtimes/machine/test_selftest",
    "app/tui/test_frame",
    "app/compare/test_prompts_command",
    "app/tui/test_monitor_screen",
    "runtimes/test_backend",
    "app/tui/test_typed_forms",
    "app/tui/test_chat_scroll",
    "app/test_adapters",
    "app/cli/test_run_command",
    "runtimes/engine/test_adapters",
    "app/tui/test_chat_look",
    "runtimes/engine/test_engine_features",
    "app/tui/test_theme",
    "app/cli/test_missing_runtime",
    "runtimes/worker/test_loading",
    "app/tui/test_hostile",
    "app/tui/test_shell",
    "runtimes/planner/test_plan",
    "app/builds/test_child",
    "app/cli/test_embed_command",
    "app/serve/test_adapters",
    "app/tui/test_compare",
    "app/tui/test_tmux",
    "app/chat/store/test_foreign_files",
    "app/compare/test_run",
    "runtimes/models/test_hostile_files",
    "app/batch/schedule/test_job",
    "app/tui/test_every_action",
    "app/cli/test_cli",
    "app/cli/test_worker_front_ends",
    "app/tui/test_batch_snapshots",
    "runtimes/sampling/test_sampling_reference",
    "runtimes/engine/test_prompt_logprobs",
    "app/doctor/test_checks",
    "runtimes/llamacpp/test_build",
    "app/batch/schedule/test_engines",
)


def keep_to_own_cores() -> None:
    """Give this worker its share of the cores; everything it starts inherits that."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker or not hasattr(os, "sched_setaffinity"):
        return
    cores, count = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    number = int(worker.removeprefix("gw"))
    # More workers than cores: two of them share one, where either waits for half of its time.
    os.sched_setaffinity(0, cores[number % len(cores) :: count])


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker, so that what they share is made once."""
    file = nodeid.split("::", 1)[0].removeprefix("tests/").removesuffix(".py")
    for folder, group in zip(_TOGETHER, _GROUPS, strict=True):
        if file.startswith(folder):
            return group
    return file


def slowest_first(items: list[pytest.Item]) -> None:
    """Put the longest groups first."""
    places = {group: place for place, group in enumerate((*_TOGETHER, *_LONG))}
    items.sort(key=lambda item: places.get(group_of(item.nodeid), len(places)))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that one of the workers makes and all use."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    made, done = root / name, root / f"{name}.done"
    with FileLock(root / f"{name}.lock"):
        if not done.exists():
            make(made)
            done.touch()
    return made
