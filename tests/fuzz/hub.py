"""A hub on 127.0.0.1 that says anything: wrong JSON, names, checksums, sizes, redirects, ranges and
ends of transfers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest import mock

from app.models import library
from app.models.hub import Query, search
from app.models.pulling import look, parse_request, pull
from quantize.hub.client import Hub, Patience, Repository, parse_hub_name
from quantize.hub.transfer import Store
from runtimes.errors import IngotError
from tests.fuzz.cases import Case, loop
from tests.fuzz.mutate import Raw, damaged, dumped, mutated, strange
from tests.quantize.hub import fakehub
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import Notes

REPO = "org/name"
_FILES = {
    "name-Q8_0.gguf": b"GGUF" + bytes(range(256)) * 3,
    "sub/name-Q4_K_M.gguf": b"GGUF" + bytes(2000),
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(300),
    "manifest.json": b'{"version": 1, "model": {"name": "x"}, "files": []}',
}
_HASTY = Hub(Patience(read_s=3.0, attempts=2, pause_s=0.01, wait_s=0.05))


class _Hostile(fakehub._Handler):
    """Changes about one answer in two."""

    def _draw(self) -> tuple[Random, list[str]]:
        return self.hub.random, self.hub.places  # type: ignore[attr-defined]

    def _begin(self) -> None:
        try:
            super()._begin()
        except (ValueError, KeyError, OSError):  # it was asked for what it made up
            self.close_connection = True

    def _json(self, value: Any) -> None:
        random, places = self._draw()
        if random.random() < 0.6:
            value = (
                _targeted(value, random, places)
                if random.random() < 0.5
                else mutated(value, random)
            )
        data = dumped(value, random)
        data = damaged(data, random) if random.random() < 0.15 else data
        self._send(200, data, {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        random, places = self._draw()
        if random.random() < 0.25:
            match random.randrange(7):
                case 0:
                    status = random.choice((200, 206, 301, 302, 401, 404, 416, 429, 500, 503, 299))
                case 1:
                    headers = {
                        **headers,
                        "Location": random.choice((*places, "/", "file:///etc/passwd")),
                    }
                    status = random.choice((301, 302, 307))
                case 2:
                    wrong = random.choice(
                        (*places, '"' + "0" * 64 + '"', "", "x" * 500, '"../../x"')
                    )
                    headers = {
                        **headers,
                        random.choice(("ETag", "X-Linked-Etag", "X-Repo-Commit")): wrong,
                    }
                case 3:
                    said = random.choice(("bytes 5-9/10", "bytes */3", "x", "bytes 0-99999999/9"))
                    headers = {**headers, "Content-Range": said}
                    status = 206
                case 4:
                    headers = {**headers, "Retry-After": random.choice(("0", "-1", "x", "9" * 30))}
                    status = 429
                case 5:
                    body = damaged(body, random)
                case _:
                    self.wfile.write(
                        damaged(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", random)
                    )
                    self.close_connection = True
                    return
        with contextlib.suppress(ValueError):
            super()._send(status, body, headers)


def _targeted(value: Any, random: Random, places: list[str]) -> Any:
    """Names and checksums that are places elsewhere."""
    value = json.loads(json.dumps(value))
    siblings = value.get("siblings") if isinstance(value, dict) else None
    if not siblings:
        return value
    place, item = random.choice(places), random.choice(siblings)
    match random.randrange(7):
        case 0:
            value["sha"] = place
        case 1:
            item["rfilename"] = random.choice(
                (place, "-Q8_0.gguf\x1b]0;x", "a" * 300 + ".gguf", "CON.gguf")
            )
        case 2:
            item["lfs"] = {"sha256": place, "size": item.get("size", 5), "pointerSize": 1}
        case 3:
            item["blobId"] = place
        case 4:
            item["size"] = random.choice((-1, 0, 2**62, 10**30, "5", 1.5, None, Raw("NaN")))
        case 5:
            siblings.extend(
                dict(item, rfilename=f"f{i}.gguf") for i in range(random.choice((3, 2000)))
            )
        case _:
            siblings.append({**item, "rfilename": f"{item['rfilename']}/below"})
    return value


@contextlib.contextmanager
def _hub() -> Iterator[FakeHub]:
    with mock.patch.object(fakehub, "_Handler", _Hostile):
        hub = FakeHub()
    hub.add(REPO, _FILES, downloads=5, tags=["gguf", "conversational"])
    hub.add("org/other", {"x.gguf": bytes(99)})
    try:
        with mock.patch.dict(os.environ, {"HF_ENDPOINT": hub.url}):
            yield hub
    finally:
        hub.close()


def _ask(case: Case, hub: FakeHub) -> None:
    random = case.random
    beside = case.folder.parent / "beside.txt"
    far = ["../" * depth + name for depth in (1, 2, 3, 5, 9) for name in ("precious", "beside.txt")]
    hub.random, hub.places = random, [str(beside), *far, f"{hub.url}/x", strange(Random(1)) or "x"]  # type: ignore[attr-defined]
    hub.places = [
        str(place).encode("latin-1", "replace").decode("latin-1")[:300] for place in hub.places
    ]  # type: ignore[attr-defined]
    name = parse_hub_name(REPO)
    assert name is not None
    kept = {hashlib.sha256(data).hexdigest() for data in _FILES.values()}
    with mock.patch.dict(os.environ, {"INGOT_HOME": str(case.folder)}):
        for _ in range(2):  # the second finds what the first left
            with contextlib.suppress(IngotError):
                match random.randrange(5):
                    case 0:
                        with mock.patch("app.models.hub.quick", return_value=_HASTY):
                            repr([*search(Query("name"))])
                    case 1:
                        look(Repository(name, Notes(), _HASTY))
                    case 2:
                        store = Store(name, Notes(), _HASTY)
                        listing = store.listing()
                        store.bring(listing, listing.files[:4])
                    case _:
                        what = random.choice(("", ":Q8_0", ":Q4_K_M"))
                        path = pull(parse_request(REPO + what), Notes(), _HASTY)
                        case.figures["pulled"] += 1
                        assert path.resolve().is_relative_to(library.library_dir().resolve()), path
                        if path.is_file():
                            assert hashlib.sha256(path.read_bytes()).hexdigest() in kept, path
        library.models()


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    logging.getLogger("httpx2").setLevel(logging.CRITICAL)
    with _hub() as hub:
        return loop("hub", lambda case: _ask(case, hub), seconds, seed, count)
