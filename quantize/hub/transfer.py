"""Get the bytes of one file, from where an earlier attempt stopped, and check them.

huggingface_hub 2.4 downloads to a temporary file of a random name and deletes it when it fails, so
an interrupted run starts over. Here the unfinished file is named after the checksum of what it will
be: any later run, of any revision that holds the same content, goes on from its end.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quantize.hub.client import Hub, RemoteFile
from quantize.hub.errors import HubError
from quantize.hub.names import HubName
from quantize.progress.console import Reporter
from runtimes.machine.locks import Lock, another_run

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetch:
    """One file to get. ``moved`` is told each number of bytes that is there, negative when bytes
    had to be thrown away."""

    name: HubName
    file: RemoteFile
    url: str
    target: Path
    moved: Callable[[int], None]


def fetch(hub: Hub, job: Fetch, progress: Reporter) -> None:
    """Bring ``job.file`` to ``job.target``, whole and with the right checksum, in one step.

    Raises HubError, UsageError, or OSError for a full disk. What has arrived stays beside the
    target as `.partial`. Two processes that want the same file take turns.
    """
    partial = job.target.with_name(f"{job.target.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    while not job.target.exists():
        with partial.open("a+b") as stream, _lock(partial, job, progress):
            # While we waited it may have become the finished file.
            if not partial.exists() or not os.path.samestat(
                partial.stat(), os.fstat(stream.fileno())
            ):
                continue
            _fill(hub, job, stream, progress)
            os.fsync(stream.fileno())
            partial.replace(job.target)
            return
    job.moved(job.file.bytes)


def checksum(path: Path, file: RemoteFile) -> bool:
    """Whether ``path`` holds what the hub says of ``file``."""
    if path.stat().st_size != file.bytes:
        return False
    digest = _new_digest(file)
    with path.open("rb") as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest() == file.key


def _new_digest(file: RemoteFile) -> hashlib._Hash:
    """sha256 of the content (LFS), or git's blob hash: sha1 over a header and the content
    (git-scm.com, "Git Internals - Git Objects")."""
    if file.sha256 is not None:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.bytes, usedforsecurity=False)


def _lock(partial: Path, job: Fetch, progress: Reporter) -> AbstractContextManager[object]:
    """Make the unfinished file ours alone."""
    try:
        try:
            return Lock(partial)
        except BlockingIOError:
            progress.note(f"{another_run(partial)} is downloading {job.file.path}; waiting for it")
            return Lock(partial, wait=True)
    except FileNotFoundError:  # it has become the finished file
        return nullcontext()


def _fill(hub: Hub, job: Fetch, stream: BinaryIO, progress: Reporter) -> None:
    """Fetch what is missing. Content with a wrong checksum is thrown away: when an earlier run left
    a part of it, which may be at fault, it is fetched once more from the start."""
    resumed = stream.seek(0, os.SEEK_END) > 0
    if _Download(hub, job, stream).run(progress):
        return
    job.moved(-stream.seek(0, os.SEEK_END))
    stream.truncate(0)
    if resumed and _Download(hub, job, stream).run(progress):
        return
    stream.truncate(0)
    raise HubError(
        f"{job.name}: {job.file.path} arrived with another checksum than the hub promises; it was"
        " thrown away. Run again"
    )


class _Download:
    """The state of one download: what the file holds so far, and its digest."""

    def __init__(self, hub: Hub, job: Fetch, stream: BinaryIO) -> None:
        self.hub, self.job, self.stream = hub, job, stream
        self.digest = _new_digest(job.file)
        self.have = 0

    def run(self, progress: Reporter) -> bool:
        """Whether the content is right once all its bytes are there."""
        self._read_what_is_there()
        failures = 0
        while self.have < self.job.file.bytes:
            before = self.have
            try:
                self._receive()
            except Exception as error:
                pause = self.hub.pause_after(error)
                reason: Exception = error
            else:
                pause = self.hub.patience.pause_s
                reason = HubError(f"{self.job.name}: {self.job.file.path} ends early on the hub")
            if self.have >= self.job.file.bytes:
                break
            failures = 1 if self.have > before else failures + 1
            if pause is None or failures >= self.hub.patience.attempts:
                raise self.hub.explain(reason, self.job.name) from reason
            if pause > self.hub.patience.pause_s:
                progress.note(f"the hub asks to wait {pause:.0f} s")
            time.sleep(pause)
        return self.have == self.job.file.bytes and self.digest.hexdigest() == self.job.file.key

    def _read_what_is_there(self) -> None:
        if self.stream.seek(0, os.SEEK_END) > self.job.file.bytes:
            self.stream.truncate(0)
        self.stream.seek(0)
        while piece := self.stream.read(_CHUNK):
            self._count(piece)

    def _count(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.have += len(piece)
        self.job.moved(len(piece))

    def _receive(self) -> None:
        """One request for the rest; its bytes are on file when this returns or raises."""
        import httpx2
        from huggingface_hub.utils import get_session, hf_raise_for_status

        headers = self.hub.headers()
        if self.have:
            headers["Range"] = f"bytes={self.have}-"
        timeout = httpx2.Timeout(self.hub.patience.read_s)
        # On a redirect to another host (the storage behind the hub) httpx2 leaves the token out.
        with get_session().stream(
            "GET", self.job.url, headers=headers, timeout=timeout, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            if self.have and response.status_code != 206:  # it ignores the range: from the start
                self.stream.truncate(0)
                self.job.moved(-self.have)
                self.have, self.digest = 0, _new_digest(self.job.file)
            try:
                for piece in response.iter_bytes():  # as they come: pieces of a size are held back
                    if self.have + len(piece) > self.job.file.bytes:
                        raise HubError(
                            f"{self.job.name}: {self.job.file.path} is longer on the hub than its"
                            f" listing says ({self.job.file.bytes:,} bytes); run again"
                        )
                    self.stream.write(piece)
                    self._count(piece)
            finally:
                self.stream.flush()
