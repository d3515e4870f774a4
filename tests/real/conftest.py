"""A real checkpoint, fetched once; where it cannot be had, these tests are skipped and say why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real import smollm2


def _had(make: Callable[[], Path]) -> Path:
    try:
        return make()
    except smollm2.UnavailableError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")


@pytest.fixture(scope="session")
def published() -> Path:
    """SmolLM2's GGUF file, as it was published."""
    return _had(smollm2.gguf_file)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """SmolLM2's Hugging Face folder."""
    return _had(smollm2.hf_folder)
