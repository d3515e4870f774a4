"""What a user may say of a server; `ingot serve` makes these of its flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from app.options import SamplingOptions, option
from runtimes.settings import MOST_SLOTS

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
# What one client may ask for.
MOST_BODY_BYTES = 16 * 2**20
MOST_FILE_BYTES = 512 * 2**20
BODY_S = 60.0  # how long a body may take to come; of the head, uvicorn's connections see to it


@dataclass(frozen=True, slots=True)
class ServeSampling(SamplingOptions):
    """How answers are sampled where a request says nothing."""

    panel: ClassVar = "Sampling, where a request says nothing"
    max_tokens: int = option(
        2**20,
        "Maximum number of tokens in an answer.",
        show_default="as many as the context holds",
    )


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where it listens, who may use it, and how much it takes on."""

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
    slots: int | None = option(
        None, "Requests that run together; up to 16 as memory allows.", min=1, max=MOST_SLOTS
    )
    queue: int = option(256, "Requests that may wait for a slot; more get 429.", min=0)
    memory: float | None = option(
        None,
        "Gigabytes that loaded models may take together; all that is free by default.",
        min=0.1,
    )
    saved_mb: int = option(
        1000,
        "Megabytes of disk for what prompts begin with (system prompts, long chats), which is then"
        " not read again after a restart; 0 for none.",
        min=0,
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
