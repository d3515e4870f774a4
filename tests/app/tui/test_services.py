"""What the app finds and leaves on disk when it starts."""

import os
from pathlib import Path

import pytest

from app.tui.services import Start, open_services


@pytest.mark.parametrize("most", ["1000", "0"])
def test_what_is_old_or_beyond_the_budget_goes(
    home: Path, most: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("INGOT_CHAT_SAVED_MB", most)
    saved, earlier = home / "cache" / "prefixes", home / "cache" / "contexts"
    for path in (saved / "new.prefix", saved / "old.prefix", earlier / "7.context"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
    os.utime(saved / "old.prefix", (0, 0))
    with open_services(Start()):
        assert [path.name for path in saved.iterdir()] == ["new.prefix"] * (most != "0")
        assert not earlier.exists()  # where an earlier Ingot kept the contexts of chats
