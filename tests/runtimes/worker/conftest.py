"""A state folder for these tests, in which the runtimes have passed their self-test once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimes.worker.recovery import forget
from tests.support import own_home


@pytest.fixture(scope="session")
def worker_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker-home")


@pytest.fixture(scope="module", autouse=True)
def state(worker_home: Path) -> Iterator[None]:
    with own_home(worker_home):
        yield


@pytest.fixture(autouse=True)
def nothing_remembered(state: None) -> None:
    forget()
