"""Options of a server, which `ingot serve` makes of its flags, and limits of requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from app.adapters import name_and_path
from app.options import AdapterOptions, SamplingOptions, option
from runtimes.errors import RequestError
from runtimes.request import with_default
from runtimes.settings import MOST_SLOTS

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
# What one client may ask for.
MOST_BODY_BYTES = 16 * 2**20
MOST_FILE_BYTES = 512 * 2**20
MOST_HEAD_BYTES = 64 * 2**10
MOST_HEAD_LINES = 256
MOST_BODIES_BYTES = 256 * 2**20  # of all requests that are being answered, and what they become
# What a body of JSON may hold; parsing it holds everybody up for so long.
MOST_VALUES = 250_000
MOST_IDS = 1_000_000  # values where prompts may be token ids
MOST_NAMES = 100_000  # in its objects
MOST_DEPTH = 128
BODY_S = 60.0  # how long a body may take to come


@dataclass(frozen=True, slots=True)
class ServeSampling(SamplingOptions):
    """How answers are sampled where a request says nothing."""

    panel: ClassVar = "Sampling, where a request says nothing"
    max_tokens: int = with_default("max_tokens", 2**20, show_default="as many as the context holds")


@dataclass(frozen=True, slots=True)
class ServeAdapters(AdapterOptions):
    """Adapters that clients may ask for."""

    adapter: list[str] | None = option(
        None,
        "A LoRA adapter of the first model, a file that `quantize --adapter` wrote; repeatable, at"
        " most 8 a model. Clients ask for it as MODEL:NAME. Another model's is given as"
        " MODEL:NAME=FILE.",
        metavar="[NAME=]FILE",
    )

    def by_model(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Group the adapters by model, of these ``names``. Raises RequestError for another one."""
        found: dict[str, list[str]] = {name: [] for name in names}
        for one in self.adapter or ():
            given, path = name_and_path(one)
            model, _, name = given.rpartition(":")
            model = model or names[0]
            if model not in found:
                known = ", ".join(names)
                raise RequestError(
                    f"--adapter {one}: there is no model {model!r}; there is: {known}"
                )
            found[model].append(f"{name}={path}")
        return found


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Address, access and load limits of a server."""

    panel: ClassVar = "Server"
    host: str = option(
        "127.0.0.1", "Address to listen on. Another than this machine's needs a key."
    )
    port: int = option(8080, "Port to listen on; 0 takes a free one.", min=0, max=65535)
    api_key: str | None = option(
        None,
        "Clients must send this key (Authorization: Bearer KEY).",
        metavar="KEY",
        envvar="INGOT_API_KEY",
        show_envvar=True,
    )
    without_key: bool = option(
        False, "With --host: let everybody in who reaches the port, without a key."
    )
    allow_host: list[str] | None = option(
        None, "Another name under which the server is reached, as in a Host header; repeatable."
    )
    cors: list[str] | None = option(
        None, "Web pages of this origin may call the server; repeatable.", metavar="ORIGIN"
    )
    data: Path | None = option(
        None, "Folder of uploaded files and batches; by default in the user's data.", metavar="DIR"
    )
    adapter_dir: Path | None = option(
        None,
        "Let clients load adapters of this folder while the server runs"
        " (POST /v1/load_lora_adapter).",
        metavar="DIR",
    )
    slots: int | None = option(
        None, "Requests that run together; up to 16 as memory allows.", min=1, max=MOST_SLOTS
    )
    queue: int = option(256, "Requests that may wait for a slot; more get 429.", min=0)
    memory: float | None = option(
        None,
        "Gigabytes that loaded models may take together; all that is free by default.",
        min=0.1,
    )
    saved_mb: int | None = option(
        None,
        "Megabytes of disk for what prompts begin with (system prompts, long chats), which is then"
        " not read again after a restart; 0 for none.",
        min=0,
        show_default="chat.saved_mb of the settings: 1000",
    )
    log_json: bool = option(False, "Log requests as JSON lines.")

    @property
    def key_needed(self) -> bool:
        """Whether the address can be reached from other machines, and nothing keeps them out."""
        return self.host not in LOCAL_HOSTS and self.api_key is None and not self.without_key

    def hosts(self) -> frozenset[str] | None:
        """Names that a Host header may have, without a port; None for any: with a key."""
        if self.host not in LOCAL_HOSTS and not self.allow_host:
            return None
        return frozenset(name.lower() for name in (*LOCAL_HOSTS, "[::1]", *(self.allow_host or ())))
