"""System messages with sampling, by name."""

from pathlib import Path

import pytest

from app.chat import presets
from app.config.files import load
from app.config.settings import Config, ConfigError, Preset

FILE = """\
# mine
theme = "nord"  # dark

[presets.coder]
system = "My coder."
sampling = { temperature = 0.5, top_k = 3 }

[keymap]
"chat.stop" = "f12"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("INGOT_CONFIG", str(path))
    return path


def test_the_users_own_come_first_and_stay_in_the_file(file: Path):
    file.write_text(FILE)
    config = load().checked()
    assert presets.all_presets(config)[0].system == "My coder."
    assert presets.find(config, "Coder").system == "My coder."
    with pytest.raises(ConfigError, match="there are: coder, plain"):
        presets.find(config, "x")

    presets.save(Preset("my  own", ' Say "hi".\nAlways. ', {"stop": ["END"]}))
    presets.save(Preset("coder", None, {"temperature": 0}))
    read = load().checked()
    assert presets.find(read, "my own") == Preset(
        "my own", 'Say "hi".\nAlways.', {"stop": ("END",)}
    )
    assert presets.find(read, "coder") == Preset("coder", None, {"temperature": 0.0})
    assert (read.theme, dict(read.keymap)) == ("nord", {"chat.stop": "f12"})
    assert "# mine" in file.read_text()

    presets.delete(read, "coder")
    presets.delete(read, "my own")
    assert load().checked().presets == ()
    with pytest.raises(ConfigError, match="comes with the app"):
        presets.delete(Config(), "coder")
    with pytest.raises(ConfigError, match="no preset"):
        presets.delete(Config(), "x")
