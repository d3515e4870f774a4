"""Codex, Claude Code, opencode and Continue's cn, as they are published, against a server of this
checkout: each is asked twice, and must have an answer, and the second time 99% of its prompt from
the cache.

    npm install --prefix DIR @openai/codex @anthropic-ai/claude-code opencode-ai @continuedev/cli
    python -m tests.real.agents DIR

They come from npm, which no test needs, so that pytest does not collect this. What is not there is
said and left out. The model is Pebble with a longer context: what it answers to prompts of so many
tokens makes no sense, but that is what is read, computed and found again. No other host is asked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import with_context

_ROOT = Path(__file__).parents[2]
_PEBBLE = _ROOT / "assets" / "pebble-built" / "pebble-q8_0.gguf"
_CONTEXT = 131_072
_ANSWER = 200  # tokens
_CACHED = 0.99
_SECONDS = 1800
_ASKED = "Say hello."
_CONTINUE = """\
name: Ingot
version: 0.0.1
schema: v1
models:
  - {{name: agent, provider: openai, model: agent, apiBase: "{address}/v1", apiKey: none}}
"""
_CLIENTS = ("codex", "claude", "opencode", "cn")
_CODEX = """\
model = "agent"
model_provider = "ingot"
model_context_window = {context}

[model_providers.ingot]
name = "Ingot"
base_url = "{address}/v1"
wire_api = "responses"

[analytics]
enabled = false
"""


@dataclass(slots=True)
class Server:
    """A running server, and the lines of its access log."""

    address: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


def main() -> int:
    """Ask each client that is there; 1 where one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where npm has installed the clients")
    parser.add_argument("--only", choices=_CLIENTS, help="one of them")
    given = parser.parse_args()
    names = [given.only] if given.only else _CLIENTS
    found = {name: given.folder / "node_modules" / ".bin" / name for name in names}
    for name in [name for name, path in found.items() if not path.exists()]:
        _say(f"{name}: not in {given.folder}; left out")
        del found[name]
    if not _PEBBLE.is_file():
        _say(f"{_PEBBLE} is not there: `make demo` builds it; nothing was tried")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ingot-agents-") as work:
        folder = Path(work)
        if found:
            with _serving(folder) as server:
                failed = sum(not _try(name, path, server, folder) for name, path in found.items())
    return 1 if failed else 0


@contextmanager
def _serving(folder: Path) -> Iterator[Server]:
    model = with_context(_PEBBLE, _CONTEXT, folder / "agent.gguf")
    command = [
        *(sys.executable, "-m", "app", "serve", f"agent={model}", "--port", "0"),
        *("--context", str(_CONTEXT), "--slots", "2", "--saved-mb", "0", "--log-json"),
        *("--max-tokens", str(_ANSWER), "--data", str(folder / "data")),
    ]
    process = subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            ready = re.search(r"(http://127\.0\.0\.1:\d+)/v1 is ready", line)
            if ready:
                break
        else:
            raise RuntimeError("the server did not start")
        server = Server(ready[1])
        threading.Thread(target=_read, args=(process.stderr, server), daemon=True).start()
        yield server
    finally:
        process.terminate()
        process.wait()


def _read(lines: Any, server: Server) -> None:
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if "prompt_tokens" in said:
            server.requests.append(said)
        else:
            server.other.append(said.get("message") or f"{said.get('path')} {said.get('status')}")


def _try(name: str, path: Path, server: Server, folder: Path) -> bool:
    home = folder / name
    (home / "work").mkdir(parents=True)
    version = _run([path, "--version"], home, {}).stdout.strip()
    command, variables = _settings(name, path, server.address, home)
    shares = []
    for number in (1, 2):
        server.requests.clear()
        server.other.clear()
        done = _run(command, home, variables)
        if done.returncode != 0 or not server.requests:
            said = (done.stdout + done.stderr)[-2000:]
            _say(f"{name} {version}: failed ({done.returncode})\n{said}\n{server.other}")
            return False
        largest = max(server.requests, key=lambda one: one["prompt_tokens"])
        shares.append(largest["cached_tokens"] / largest["prompt_tokens"])
        _say(
            f"{name} {version}, {number}: {largest['path']}, {len(server.requests)} requests,"
            f" cached {largest['cached_tokens']:,} of {largest['prompt_tokens']:,},"
            f" answer of {largest['completion_tokens']} tokens: {done.stdout.strip()[:60]!r}"
        )
        for line in server.other:
            _say(f"    {line}")
    return shares[-1] >= _CACHED


def _settings(
    name: str, path: Path, address: str, home: Path
) -> tuple[list[str | Path], dict[str, str]]:
    """The command that asks, and the variables of its environment."""
    if name == "codex":
        text = _CODEX.format(address=address, context=_CONTEXT)
        (home / "config.toml").write_text(text)
        return [path, "exec", "--skip-git-repo-check", _ASKED], {"CODEX_HOME": str(home)}
    if name == "cn":
        (home / "config.yaml").write_text(_CONTINUE.format(address=address))
        return [path, "--config", home / "config.yaml", "-p", _ASKED], {}
    if name == "claude":
        variables = {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "agent",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "agent",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(_ANSWER),
            "CLAUDE_CONFIG_DIR": str(home / "claude"),
            "API_TIMEOUT_MS": str(_SECONDS * 1000),
        }
        return [path, "-p", _ASKED], variables
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Ingot",
        "options": {"baseURL": f"{address}/v1", "apiKey": "none"},
        "models": {"agent": {"name": "agent", "limit": {"context": _CONTEXT, "output": _ANSWER}}},
    }
    settings = {
        "provider": {"ingot": provider},
        "model": "ingot/agent",
        "small_model": "ingot/agent",
        "autoupdate": False,
        "share": "disabled",
    }
    (home / "work" / "opencode.json").write_text(json.dumps(settings))
    variables = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return [path, "run", _ASKED], variables


def _run(
    command: list[Any], home: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    try:
        return subprocess.run(
            [str(part) for part in command],
            cwd=home / "work",
            env={**keep, "HOME": str(home), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"took more than {_SECONDS} s")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
