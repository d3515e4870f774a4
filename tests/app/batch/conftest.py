"""Jobs that leave nothing in the user's folder, and find nothing there."""

import pytest


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """How soon a beginning is read, and so whether it is saved, depends on the machine."""
    monkeypatch.setenv("INGOT_CHAT_SAVED_MB", "0")
