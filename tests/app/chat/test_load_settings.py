"""How a file is loaded: what may be typed, what is remembered, and that the engine has it."""

from pathlib import Path

import pytest

from app.chat.host import EngineHost
from app.chat.load_settings import (
    KNOWN,
    LoadSettings,
    read,
    remember,
    remembered,
)
from runtimes.errors import RequestError
from runtimes.machine.state_file import save_entry
from runtimes.models.registry import read_model


@pytest.fixture(autouse=True)
def _home(home: Path) -> None:
    """What is remembered is the test's own."""


def test_what_may_be_typed(gguf_file: Path):
    file = read_model(gguf_file)
    said, errors = read(
        {"context": "512", "threads": " 1 ", "kv_type": "q8_0", "template": ""}, file
    )
    assert not errors
    assert said == LoadSettings(context=512, threads=1, kv_type="q8_0")
    longest = file.context_length
    _, errors = read(
        {
            "context": str(longest + 1), "threads": "0", "gpu_layers": "-2", "kv_type": "q5",
            "template": "nothing.jinja",
        },
        file,
    )  # fmt: skip
    assert list(errors) == ["context", "threads", "gpu_layers", "kv_type", "template"]
    assert errors["context"] == f"a whole number from 8 to {longest:,}"
    assert errors["gpu_layers"] == "a whole number from -1"
    assert errors["kv_type"].startswith("'q5' is not one of f16, bf16, q8_0, ")
    assert "no chat template nothing.jinja" in errors["template"]


def test_it_is_remembered_by_file(gguf_file: Path, tmp_path: Path):
    said = LoadSettings(context=512, template="chatml")
    remember(gguf_file, said)
    assert remembered(gguf_file) == said
    assert remembered(tmp_path / "other.gguf") == LoadSettings()
    kept = {
        "new": 1,
        "threads": 2,
        "kv_type": "of a later version",
        "context": [],
        "gpu_layers": -9,
    }
    save_entry("load_settings", str(gguf_file.resolve()), kept, 9)
    assert remembered(gguf_file) == LoadSettings(threads=2)
    remember(gguf_file, LoadSettings())
    assert remembered(gguf_file) == LoadSettings()


def test_the_engine_has_it(gguf_file: Path):
    host = EngineHost()
    try:
        remember(gguf_file, LoadSettings(context=300, threads=1, template="llama3"))
        host.load(str(gguf_file))
        assert (host.engine.context, host.template) == (300, KNOWN["llama3"])
        assert host.details.endswith("1 thread")
        remember(gguf_file, LoadSettings(template="gone.jinja"))
        with pytest.raises(RequestError, match=r"no chat template gone\.jinja"):
            host.load(str(gguf_file))
        remember(gguf_file, LoadSettings())
        host.load(str(gguf_file))
        assert host.template is None
    finally:
        host.close()
