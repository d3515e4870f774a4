"""A model hub on 127.0.0.1, with the faults that a real one and the way to it have.

It speaks what huggingface_hub asks for: searches page by page, model information, files with
redirects of large ones to a storage host on another port, byte ranges, and uploads.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

LARGE = 64  # bytes from which a file is stored as LFS here
_PIECE = 16384


@cache
def _sums(data: bytes) -> tuple[str, str]:
    """SHA-256 of a file, and the hash by which git knows it: asked for at every request."""
    return hashlib.sha256(data).hexdigest(), hashlib.sha1(
        b"blob %d\0" % len(data) + data
    ).hexdigest()


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    storage: bool
    sent: int = 0
    asked: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Fault:
    """What happens to requests whose path matches ``path``, ``times`` times."""

    path: str
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # bytes of the body, then the connection breaks
    stall_after: int | None = None  # bytes of the body, then nothing comes until it is given up
    given_up: threading.Event = field(default_factory=threading.Event)
    ignore_range: bool = False
    flip: bool = False  # one bit of the body
    page: bytes | None = None  # instead of an answer, as a proxy does before one has logged in
    times: int = 1_000_000


class FakeHub:
    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.page = 1000  # repositories in a page of a search, at most
        self.private: dict[str, bool] = {}
        self.tokens: set[str] = {"hf_good"}
        self.gated: set[str] = set()
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.uploaded: dict[str, bytes] = {}
        # What a hostile one says instead of what it holds.
        self.lie: Callable[[dict[str, Any]], Any] = lambda said: said
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._servers = [_serve(self, storage=False), _serve(self, storage=True)]
        self.url, self.storage_url = (
            f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers
        )

    def add(self, repo: str, files: dict[str, bytes], **facts: Any) -> str:
        """Put a repository there, with facts such as ``downloads`` and ``tags``; its commit."""
        self.repos[repo] = dict(files)
        self.facts[repo] = facts
        return self.commit(repo)

    def commit(self, repo: str) -> str:
        sums = sorted((name, _sums(data)) for name, data in self.repos[repo].items())
        return hashlib.sha1(repr(sums).encode()).hexdigest()

    def fault(self, path: str, **what: Any) -> Fault:
        made = Fault(path, **what)
        self.faults.append(made)
        return made

    def sent(self, name: str) -> list[int]:
        """Bytes sent in each answer to a GET of the content of ``name``."""
        return [r.sent for r in self.requests if r.method == "GET" and r.path.endswith(name)]

    def close(self) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()


def _serve(hub: FakeHub, storage: bool) -> ThreadingHTTPServer:
    handler = type("Handler", (_Handler,), {"hub": hub, "storage": storage})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub
    storage: bool

    def log_message(self, *_: Any) -> None:
        pass

    def _begin(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.seen = Request(self.command, path, headers, self.storage, asked=parse_qs(url.query))
        with self.hub.lock:
            self.hub.requests.append(self.seen)
            fault = next(
                (f for f in self.hub.faults if f.times > 0 and re.search(f.path, path)), None
            )
            if fault:
                fault.times -= 1
        self.fault = fault or Fault("")
        body = self.rfile.read(int(headers.get("content-length", 0)))
        if self.fault.status:
            return self._error(self.fault.status, **self.fault.headers)
        if self.fault.page is not None:
            return self._send(200, self.fault.page, {"Content-Type": "text/html"})
        if self.storage:
            return self._storage(path, body)
        return self._hub(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = _begin

    # The hub itself

    def _hub(self, path: str, body: bytes) -> None:
        repo, model = "([^/]+/[^/]+)", "/api/models/([^/]+/[^/]+)"
        routes: dict[str, Callable[..., None]] = {
            "/api/validate-yaml": lambda: self._json({"errors": [], "warnings": []}),
            "/api/models": lambda: self._search(self.seen.asked),
            "/api/whoami-v2": self._whoami,
            "/api/repos/create": lambda: self._create(json.loads(body)),
            f"{model}/preupload/[^/]+": lambda _: self._preupload(json.loads(body)),
            rf"/{repo}\.git/info/lfs/objects/batch": lambda _: self._batch(json.loads(body)),
            f"{model}/commit/[^/]+": lambda repo: self._commit(repo, body),
            f"{model}(?:/revision/(.+))?": self._info,
            f"/{repo}/resolve/([^/]+)/(.+)": self._resolve,
        }
        for pattern, answer in routes.items():
            if match := re.fullmatch(pattern, path):
                return answer(*match.groups())
        return self._error(404)

    def _allowed(self, repo: str) -> bool:
        bearer = self.seen.headers.get("authorization", "")
        token = bearer.removeprefix("Bearer ") or None
        if token is not None and token not in self.hub.tokens:
            said = {"X-Error-Message": "Invalid credentials in Authorization header"}
            self._error(401, **said)
        elif repo not in self.hub.repos:
            self._error(404 if token else 401, **{"X-Error-Code": "RepoNotFound"})
        elif repo in self.hub.gated and "/resolve/" in self.seen.path:
            self._error(403 if token else 401, **{"X-Error-Code": "GatedRepo"})
        else:
            return True
        return False

    def _info(self, repo: str, revision: str | None) -> None:
        if not self._allowed(repo):
            return
        commit = self.hub.commit(repo)
        if revision not in (None, "main", "v1", commit):
            self._error(404, **{"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for name, data in self.hub.repos[repo].items():
            sha, blob = _sums(data)
            siblings.append({"rfilename": name, "size": len(data), "blobId": blob})
            if len(data) >= LARGE:
                siblings[-1]["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
        said = {"sha": commit, "siblings": siblings, "private": False}
        self._json(self.hub.lie({**self._described(repo), **said}))

    def _described(self, repo: str) -> dict[str, Any]:
        """What the hub says of a repository beside its files."""
        facts = {"downloads": 0, "likes": 0, "lastModified": "2026-01-01T00:00:00.000Z"}
        facts |= self.hub.facts.get(repo, {})
        names = list(self.hub.repos[repo])
        kinds = [k for k in ("gguf", "onnx", "safetensors") if any(f".{k}" in n for n in names)]
        tags = [*kinds, *facts.pop("tags", ["conversational"])]
        gated = "manual" if repo in self.hub.gated else False
        return {"id": repo, "tags": tags, "gated": gated, **facts}

    def _search(self, asked: dict[str, list[str]]) -> None:
        token = self.seen.headers.get("authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            self._error(401)
            return
        words, tags = asked.get("search", [""])[0].lower().split(), set(asked.get("filter", []))
        found = [
            one
            for one in map(self._described, self.hub.repos)
            if tags <= {*one["tags"]} and all(word in one["id"].lower() for word in words)
        ]
        found.sort(key=lambda one: one[asked["sort"][0]], reverse=True)
        first = int(asked.get("cursor", ["0"])[0])
        last = first + min(int(asked["limit"][0]), self.hub.page)
        headers = {"Content-Type": "application/json"}
        if last < len(found):
            query = urlencode({**asked, "cursor": [str(last)]}, doseq=True)
            headers["Link"] = f'<https://hub.example/api/models?{query}>; rel="next"'
        told = {"id", *asked["expand"]}
        page = [{k: v for k, v in one.items() if k in told} for one in found[first:last]]
        self._send(200, json.dumps(page).encode(), headers)

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if not self._allowed(repo):
            return
        data = self.hub.repos[repo].get(name)
        if data is None or revision not in ("main", self.hub.commit(repo)):
            self._error(
                404, **{"X-Error-Code": "EntryNotFound" if data is None else "RevisionNotFound"}
            )
            return
        about = {"X-Repo-Commit": self.hub.commit(repo)}
        if len(data) >= LARGE:
            about |= {"X-Linked-Etag": f'"{_sums(data)[0]}"', "X-Linked-Size": str(len(data))}
            about["Location"] = f"{self.hub.storage_url}/{repo}/{name}"
            self._send(302, b"", about)
        else:
            about["ETag"] = f'"{_sums(data)[1]}"'
            self._content(data, about)

    def _is_known(self) -> bool:
        known = self.seen.headers.get("authorization") == "Bearer hf_good"
        if not known:
            self._error(401)
        return known

    def _whoami(self) -> None:
        if self._is_known():
            self._json({"type": "user", "name": "me"})

    def _create(self, asked: dict[str, Any]) -> None:
        if not self._is_known():
            return
        repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if repo in self.hub.repos:
            self._send(409, json.dumps({"url": f"{self.hub.url}/{repo}"}).encode(), {})
            return
        self.hub.repos[repo] = {}
        self.hub.private[repo] = asked.get("visibility") == "private"
        self._json({"url": f"{self.hub.url}/{repo}", "name": repo})

    def _preupload(self, asked: dict[str, Any]) -> None:
        modes = [
            {"path": f["path"], "uploadMode": "lfs" if f["size"] >= LARGE else "regular"}
            for f in asked["files"]
        ]
        self._json({"files": [{**mode, "shouldIgnore": False} for mode in modes]})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for item in asked["objects"]:
            href = f"{self.hub.storage_url}/upload/{item['oid']}"
            objects.append({**item, "actions": {"upload": {"href": href, "header": {}}}})
        self._json({"transfer": "basic", "objects": objects})

    def _commit(self, repo: str, body: bytes) -> None:
        for line in map(json.loads, body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.hub.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.repos[repo][value["path"]] = self.hub.uploaded[value["oid"]]
        commit = self.hub.commit(repo)
        self._json({"commitUrl": f"{self.hub.url}/{repo}/commit/{commit}", "commitOid": commit})

    # The storage behind it

    def _storage(self, path: str, body: bytes) -> None:
        if self.command == "PUT":
            self.hub.uploaded[hashlib.sha256(body).hexdigest()] = body
            self._send(200, b"", {})
            return
        org, name, file = path.lstrip("/").split("/", 2)
        self._content(self.hub.repos[f"{org}/{name}"][file], {})

    # Answers

    def _content(self, data: bytes, headers: dict[str, str]) -> None:
        if self.fault.flip:
            data = bytes([data[0] ^ 1]) + data[1:]
        status, asked = 200, self.seen.headers.get("range")
        if asked and not self.fault.ignore_range:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            start, last = int(begin), min(int(end or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{last}/{len(data)}"
            data, status = data[start : last + 1], 206
        self._send(status, data, headers)

    def _json(self, data: Any) -> None:
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, **headers: str) -> None:
        self._send(status, b"{}", {"Content-Type": "application/json", **headers})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = min(
            len(body) if end is None else end
            for end in (self.fault.cut_after, self.fault.stall_after)
        )
        for begin in range(0, min(stop, len(body)), _PIECE):
            piece = body[begin : min(begin + _PIECE, stop)]
            self.seen.sent += len(piece)  # before whoever gets it may look
            self.wfile.write(piece)
        self.wfile.flush()
        if stop < len(body):
            if self.fault.stall_after is not None:
                while not self.hub.closing.is_set() and not self.fault.given_up.wait(0.02):
                    pass
            self.close_connection = True
