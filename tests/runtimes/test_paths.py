from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from runtimes import paths


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INGOT_HOME", raising=False)


@pytest.mark.parametrize("value", [None, "", "set"])
def test_the_folders_are_the_ones_of_platformdirs(
    value: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value and str(tmp_path / variable))
    assert paths.cache_dir() == platformdirs.user_cache_path("ingot")
    assert paths.state_dir() == platformdirs.user_state_path("ingot")
    assert paths.config_dir() == platformdirs.user_config_path("ingot")


def test_one_variable_moves_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path))
    assert paths.cache_dir() == tmp_path / "cache"
    assert paths.state_dir() == tmp_path / "state"
    assert paths.config_dir() == tmp_path / "config"
