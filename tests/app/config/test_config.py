"""Settings: what is read, what is told, what is written back."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import main as cli
from app.config.files import load, remove, set_value
from app.config.settings import (
    SETTINGS,
    Config,
    ConfigError,
    Preset,
    parse,
    parts_of,
)

ROOT = Path(__file__).resolve().parents[3]

_FULL = """\
# My settings
theme = "nord"   # as at night
mouse = false
thinking = "shown"
notify = "desktop"
notify_after = 0

[chat]
model = "assets/pebble-built"
system = "Be short."
preset = "my.own"
context = 4096
threads = 2
sidebar = false
saved_mb = 0

[sampling]
max_tokens = 100
temperature = 1
stop = ["END", "STOP"]
seed = 7

[keymap]
"chat.stop" = ["escape", "f10"]
chat.send = "ctrl+d"

[mcp]
calls = 3
seconds = 5
kib = 8

[mcp.servers.time]
command = "uvx"
args = ["mcp-server-time"]
env = { TZ = "UTC" }
on = true

[mcp.servers."a.b"]
url = "http://localhost/mcp"
headers = { X-Key = "${KEY}" }

[presets.reviewer]
system = "You review."
sampling = { temperature = 0, top_k = 3 }

[presets."my.own"]
"""


@pytest.fixture(autouse=True)
def _no_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("INGOT_S", "INGOT_C"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "config" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(_FULL)
    return path


def _preset(config: Config, name: str) -> Preset:
    return next(preset for preset in config.presets if preset.name == name)


def test_everything_is_read(file: Path) -> None:
    config = load().checked()
    assert (config.theme, config.mouse, config.thinking) == ("nord", False, "shown")
    assert (config.notify, config.notify_after) == ("desktop", 0)
    assert config.chat.model == "assets/pebble-built"
    assert (config.chat.context, config.chat.threads, config.chat.preset) == (4096, 2, "my.own")
    assert (config.chat.saved_mb, config.chat.sidebar) == (0, False)
    params = config.sampling.params(top_k=2)
    assert (params.max_tokens, params.temperature, params.top_k) == (100, 1.0, 2)
    assert (params.stop, params.seed) == (("END", "STOP"), 7)
    assert config.keymap == {"chat.stop": "escape,f10", "chat.send": "ctrl+d"}
    assert [preset.name for preset in config.presets] == ["reviewer", "my.own"]
    assert _preset(config, "reviewer").sampling == {"temperature": 0.0, "top_k": 3}
    assert (config.mcp.calls, config.mcp.seconds, config.mcp.kib) == (3, 5, 8)
    assert config.mcp.servers == {
        "time": {"command": "uvx", "args": ("mcp-server-time",), "env": {"TZ": "UTC"}, "on": True},
        "a.b": {"url": "http://localhost/mcp", "headers": {"X-Key": "${KEY}"}},
    }
    untried = {key.removeprefix("sampling.") for key in set(SETTINGS) - load().sources.keys()}
    assert untried == {  # so that a new one is added above
        *("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("thinking", "think_tokens"),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("thme = 'x'", "there is no setting thme; did you mean theme?"),
        ("temperature = 1", "did you mean sampling.temperature?"),
        ("[chat]\ncontxt = 1", "did you mean chat.context?"),
        ("mouse = 'yes'", "mouse must be true or false, not 'yes'"),
        ("thinking = 'never'", "thinking must be one of collapsed, shown, hidden, not 'never'"),
        ("[chat]\nthreads = 0", "chat.threads must be at least 1, not 0"),
        ("[chat]\ncontext = 1.5", "chat.context must be a whole number, not 1.5"),
        ("[sampling]\ntemperature = nan", "sampling.temperature must be a number, not nan"),
        ("[sampling]\ntop_p = 4", "top_p must be in (0, 1], not 4.0"),
        ("[sampling]\nstop = ['x', 1]", "sampling.stop must be a list of texts"),
        ("chat = 3", "chat must be a table, written as [chat]"),
        ("[presets.x]\nsystm = 'y'", "there is no setting presets.x.systm"),
        ("[presets.x.sampling]\ntop_k = -1", "top_k must be 0 (off) or more, not -1"),
        ("[chat]\npreset = 'none'", "chat.preset is 'none', which is not a preset"),
        ("theme = ", "is not TOML, so nothing of it holds"),
        ("x = " + "[" * 5000, "so nothing of it holds"),
        (".".join("a" * 2000) + " = 1", "so nothing of it holds"),
        ("[mcp]\nseconds = 0", "mcp.seconds must be at least 1, not 0"),
        ("[mcp.servers]\na = 1", "mcp.servers.a must be a table, written as [mcp.servers.a]"),
        ("[mcp.servers.a]\nenv = 1", "there is no setting mcp.servers.a.env; did you mean env.*?"),
        ("[mcp.servers.a.env]\nX = 1", "mcp.servers.a.env.X must be a text, not 1"),
        ("[mcp.servers.a]\ncomand = 'x'", "mcp.servers.a.comand; did you mean command?"),
        ("[models]\nsmall = 4", "models.small must be a table, written as [models.small]"),
        ("[models.a]\ncontext = 7", "models.a.context must be at least 8, not 7"),
        ("[models.a]\nkv_type = 'q9'", "a.kv_type: 'q9' is not one of f16, bf16, "),
        ("[models.a]\naliases = 'b'", "models.a.aliases must be a list of texts, not 'b'"),
        ("[models.a]\nslotz = 4", "there is no setting models.a.slotz; did you mean slots?"),
        ("[models.a]\nmin_p = 1", "no setting models.a.min_p; there are aliases, slots, "),
    ],
)
def test_what_is_wrong_is_told_and_the_rest_holds(file: Path, text: str, told: str) -> None:
    file.write_text(f"{text}\n[presets.held]\n")
    loaded = load()
    (problem,) = loaded.problems
    held = () if "nothing of it holds" in told else ("held",)
    assert tuple(one.name for one in loaded.config.presets if one.name != "x") == held
    assert replace(loaded.config, presets=()) == Config()
    assert told in problem
    assert str(file) in problem
    with pytest.raises(ConfigError) as raised:
        loaded.checked()
    assert raised.value.exit_code == 2


def test_a_preset_can_be_what_chats_begin_with(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("chat.preset = 'coder'")  # which comes with the app
    config = load().checked()
    assert config.chat.preset == "coder"
    assert config.chat.system is not None
    assert config.sampling.temperature == 0.2
    file.write_text(
        "[chat]\npreset = 'own'\nsystem = 'plain'\n"
        "[sampling]\ntop_k = 1\ntemperature = 2\nseed = 3\n"
        "[presets.own]\nsampling = { top_k = 5, temperature = 0 }\n"
    )
    monkeypatch.setenv("INGOT_SAMPLING_TOP_K", "9")
    loaded = load()
    config = loaded.checked()
    assert config.chat.system == "plain"
    assert (config.sampling.top_k, config.sampling.temperature, config.sampling.seed) == (9, 0, 3)
    assert loaded.sources["sampling.temperature"] == "preset"
    assert loaded.sources["sampling.top_k"] == "environment"


def test_the_order_is_environment_file_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_SAMPLING_SEED", "8")
    monkeypatch.setenv("INGOT_SAMPLING_STOP", '["x", "y"]')
    monkeypatch.setenv("INGOT_MOUSE", "on")
    monkeypatch.setenv("INGOT_CHAT_MODEL", "other")
    loaded = load()
    config = loaded.checked()
    assert (config.sampling.seed, config.sampling.stop, config.mouse) == (8, ("x", "y"), True)
    assert (config.chat.model, config.chat.system) == ("other", "Be short.")
    assert loaded.sources["chat.model"] == "environment"
    assert loaded.sources["sampling.seed"] == "environment"
    assert loaded.sources["theme"] == "file"
    assert "sampling.top_k" not in loaded.sources
    monkeypatch.setenv("INGOT_SAMPLING_SEED", "soon")
    loaded = load()
    assert loaded.config.sampling.seed == 7
    assert loaded.problems == (
        "INGOT_SAMPLING_SEED: sampling.seed must be a whole number, not 'soon'",
    )


def test_changing_one_leaves_the_rest_as_it_was(file: Path) -> None:
    file.chmod(0o640)
    with file.open() as reader:
        set_value("theme", "gruvbox")
        assert reader.read() == _FULL  # replaced, not written over
    assert file.read_text() == _FULL.replace('"nord"', '"gruvbox"')
    set_value("sampling.temperature", 0)
    set_value("keymap.chat.copy", "f4")
    set_value("presets.my.own.sampling.stop", ["a"])
    set_value("presets.new.system", 'two\n"lines"')
    text = file.read_text()
    assert "# as at night" in text
    assert text.index("[chat]") < text.index("[sampling]") < text.index("[keymap]")
    config = load().checked()
    assert config.sampling.temperature == 0
    assert config.keymap["chat.copy"] == "f4"
    assert _preset(config, "my.own").sampling == {"stop": ("a",)}
    assert _preset(config, "new").system == 'two\n"lines"'
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert remove(parts_of("presets.new.system"))
    assert remove(parts_of("keymap.chat.copy"))
    assert not remove(parts_of("keymap.chat.copy"))
    assert not remove(parts_of("sampling.top_k"))
    assert "chat.copy" not in load().checked().keymap


def test_what_cannot_be_written_leaves_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in (("nope", 1), ("mouse", "x"), ("sampling.top_p", 3)):
        with pytest.raises(ConfigError):
            set_value(key, value)
    assert file.read_text() == _FULL
    file.write_text("theme = ")
    with pytest.raises(ConfigError, match="fix it first"):
        set_value("mouse", True)
    assert file.read_text() == "theme = "
    file.write_text("chat = 3")
    with pytest.raises(ConfigError, match="must be a table"):
        set_value("chat.model", "x")
    monkeypatch.setenv("INGOT_CONFIG", "/proc/config.toml")
    with pytest.raises(ConfigError, match="cannot be written"):
        set_value("mouse", True)
    assert list(file.parent.iterdir()) == [file]


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    file.rename(real)
    file.symlink_to(real)
    set_value("mouse", True)
    assert file.is_symlink()
    assert "mouse = true" in real.read_text()


def test_the_command(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_THEME", "")  # says nothing

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        assert cli.main(["config", *arguments]) == code
        return capsys.readouterr()

    out, err = run()
    lines = out.splitlines()
    assert any(line.startswith('theme = "nord"') and line.endswith("# file") for line in lines)
    assert any(line.startswith("sampling.top_k = 0 ") and "# default" in line for line in lines)
    assert any(line.startswith('presets.reviewer.system = "You review."') for line in lines)
    assert str(file) in err
    assert run("path")[0] == f"{file}\n"
    run("set", "sampling.presence_penalty", "-1.5")
    assert run("get", "sampling.presence_penalty")[0] == "-1.5\n"
    assert run("get", "sampling.stop")[0] == '["END", "STOP"]\n'
    run("unset", "mouse")
    data = json.loads(run("--json")[0])
    assert data["settings"]["mouse"] == {"value": True, "source": "default"}
    assert data["problems"] == []
    file.write_text("thme = 1")
    out, err = run(code=2)
    assert "did you mean theme?" in err
    assert "sampling.temperature" in out
    file.write_text('theme = "nowhere"\n[keymap]\n"app.quitt" = "f10"\n')
    told = run(code=2)[1]
    assert "there is no theme nowhere" in told
    assert "did you mean app.quit?" in told


_MODELS = """\
[models."small-0.1.2"]
slots = 4
context = 512
kv_type = "q8_0"
bits = 8
unified_kv = true

[models.large]
threads = 2
recipe = "q4_k_m"
aliases = ["gpt-4o", "b"]
"""


def test_a_model_has_settings_of_its_own(file: Path) -> None:
    file.write_text(_MODELS)
    models = load().checked().models
    small = {"slots": 4, "context": 512, "kv_type": "q8_0", "bits": "8", "unified_kv": True}
    large = {"recipe": "q4_k_m", "aliases": ("gpt-4o", "b")}
    assert models == {"small-0.1.2": small, "large": {"threads": 2, **large}}
    set_value("models.small-0.1.2.slots", parse("models.small-0.1.2.slots", "2"))
    assert remove(parts_of("models.large.threads"))
    models = load().checked().models
    assert models["small-0.1.2"]["slots"] == 2
    assert models["large"] == large


# Several at once, and files that are none


_SET = """
import sys
from app.config.files import set_value

sys.stdin.readline()
for number in range(20):
    set_value(f"keymap.key_{sys.argv[1]}_{number}", "f1")
"""


def test_what_several_programs_set_at_once_is_all_there(file: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _SET, str(number)], stdin=subprocess.PIPE, cwd=ROOT)
        for number in range(3)
    ]
    for one in writers:  # they begin together, once they have started
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.close()
    assert [one.wait(120) for one in writers] == [0] * 3
    keymap = tomllib.loads(file.read_text())["keymap"]
    assert {f"key_{one}_{number}" for one in range(3) for number in range(20)} <= keymap.keys()
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero", "pipe", "folder", "large", "bytes"])
def test_what_is_no_file_of_settings_is_neither_waited_for_nor_replaced(
    file: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as sparse:
        sparse.truncate(10 * 2**30)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("INGOT_CONFIG", str(path))
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    before = path.stat()
    for one in (path, link):
        monkeypatch.setenv("INGOT_CONFIG", str(one))
        problems = load().problems
        assert (not problems) == (name == "/dev/null")
        for change in (
            lambda: set_value("mouse", True),
            lambda: remove(["mouse"]),
        ):
            with pytest.raises(ConfigError, match=str(os.path.realpath(one))):
                change()
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)
    assert link.is_symlink()
