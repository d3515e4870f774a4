"""Get the bytes of one file, from where an earlier attempt stopped, and check them.

huggingface_hub 2.4 downloads to a temporary file of a random name and deletes it when it fails, so
an interrupted run starts over. Here the unfinished file is named after the checksum of what it will
be: any later run, of any revision that holds the same content, resumes from its end.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from quantize.disk import full_disk_explained, human, require_room
from quantize.hub.client import Listing, RemoteFile, Repository
from quantize.hub.errors import EndsEarlyError, HubError, require_success
from runtimes.machine.locks import Lock, another_run

if TYPE_CHECKING:
    import httpx2

_CHUNK = 1 << 20


def fetch_files(
    repo: Repository, listing: Listing, files: Sequence[RemoteFile], folder: Path, doing: str
) -> None:
    """Bring ``files`` into ``folder``, each named by its checksum; ``doing`` is what users read.

    Raises HubError, UsageError, or DiskFullError before anything that does not fit.
    """
    total, done = sum(file.bytes for file in files), 0
    require_room(folder, total - arrived(folder, files), f"{doing} {repo.name}")

    def moved(count: int) -> None:
        nonlocal done
        done += count
        repo.progress.advance(done, total, "bytes")

    what = "file" if len(files) == 1 else "files"
    stage = f"{doing} {repo.name}: {len(files)} {what}, {human(total)}"
    with repo.progress.stage(stage), full_disk_explained(folder):
        for file in sorted(files, key=lambda file: file.bytes):
            fetch(repo, listing, file, folder / file.key, moved)


def arrived(folder: Path, files: Sequence[RemoteFile]) -> int:
    """Bytes of ``files`` that are in ``folder``, those of interrupted downloads included."""
    paths = (path for f in files for path in (folder / f.key, _partial(folder / f.key)))
    return sum(path.stat().st_size for path in paths if path.exists())


def fetch(
    repo: Repository,
    listing: Listing,
    file: RemoteFile,
    target: Path,
    moved: Callable[[int], None] = lambda _: None,
) -> None:
    """Bring ``file`` to ``target``, whole and with the right checksum, in one step.

    ``moved`` is told each number of bytes that is there, negative when bytes had to be thrown away.
    Raises HubError, UsageError, or OSError for a full disk. What has arrived stays beside the
    target as `.partial`. Two processes that want the same file take turns.
    """
    partial = _partial(target)
    partial.parent.mkdir(parents=True, exist_ok=True)
    while not target.exists():
        with partial.open("a+b") as stream, _lock(partial, file, repo):
            # While we waited it may have become the finished file.
            if partial.exists() and os.path.samestat(partial.stat(), os.fstat(stream.fileno())):
                _Download(repo, listing, file, stream, moved).fill()
                os.fsync(stream.fileno())
                partial.replace(target)
                return
    moved(file.bytes)


def fetch_start(repo: Repository, listing: Listing, file: RemoteFile, count: int) -> bytes:
    """The first ``count`` bytes of ``file``, or all of a shorter one. Raises HubError or
    UsageError."""

    def receive() -> bytes:
        got = b""
        with _request(repo, listing, file, f"bytes=0-{count - 1}") as response:
            for piece in response.iter_bytes():  # all of it, where the range is ignored
                got += piece
                if len(got) >= count:
                    break
        return got[:count]

    return repo.patiently(receive)


def checksum(path: Path, file: RemoteFile) -> bool:
    """Whether ``path`` holds what the hub says of ``file``."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: _new_digest(file))
    return digest.hexdigest() == file.key


def _new_digest(file: RemoteFile) -> hashlib._Hash:
    """sha256 of the content (LFS), or git's blob hash: sha1 over a header and the content
    (git-scm.com, "Git Internals - Git Objects")."""
    if file.sha256 is not None:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.bytes, usedforsecurity=False)


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def _lock(partial: Path, file: RemoteFile, repo: Repository) -> AbstractContextManager[object]:
    """Make the unfinished file ours alone."""
    try:
        try:
            return Lock(partial)
        except BlockingIOError:
            repo.progress.note(f"{another_run(partial)} is downloading {file.path}; waiting for it")
            return Lock(partial, wait=True)
    except FileNotFoundError:  # it has become the finished file
        return nullcontext()


@contextmanager
def _request(
    repo: Repository, listing: Listing, file: RemoteFile, span: str | None
) -> Iterator[httpx2.Response]:
    """The content of a file, or a ``span`` of it, as it comes."""
    import httpx2
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    url = hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=repo.hub.endpoint)
    # No compression: lengths and ranges are the file's.
    headers = {**build_hf_headers(library_name="ingot"), "Accept-Encoding": "identity"}
    if span is not None:
        headers["Range"] = span
    timeout = httpx2.Timeout(repo.hub.patience.read_s)
    # On a redirect to another host (the storage behind the hub) httpx2 leaves the token out.
    with get_session().stream(
        "GET", url, headers=headers, timeout=timeout, follow_redirects=True
    ) as response:
        require_success(response)
        yield response


@dataclass(slots=True)
class _Download:
    """One download into the unfinished file ``stream``."""

    repo: Repository
    listing: Listing
    file: RemoteFile
    stream: BinaryIO
    moved: Callable[[int], None]
    have: int = 0  # bytes of the file so far
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)  # of those

    def fill(self) -> None:
        """Fetch what is missing. Content with a wrong checksum is thrown away: when an earlier run
        left a part of it, which may be at fault, it is fetched once more from the start."""
        attempts = 2 if self.stream.seek(0, os.SEEK_END) else 1
        for _ in range(attempts):
            if self._is_right():
                return
            self.moved(-self.have)
            self.stream.truncate(0)
        raise HubError(
            f"{self.repo.name}: {self.file.path} arrived with another checksum than the hub"
            " promises; it was thrown away. Run again"
        )

    def _is_right(self) -> bool:
        """Whether the content has the right checksum once all its bytes are there."""
        self.have, self.digest = 0, _new_digest(self.file)
        if self.stream.seek(0, os.SEEK_END) > self.file.bytes:
            self.stream.truncate(0)
        self.stream.seek(0)
        while piece := self.stream.read(_CHUNK):
            self._count(piece)
        self.repo.patiently(self._receive, lambda: self.have)
        return self.digest.hexdigest() == self.file.key

    def _count(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.have += len(piece)
        self.moved(len(piece))

    def _receive(self) -> None:
        """One request for the rest; its bytes are on file when this returns or raises."""
        if self.have == self.file.bytes:
            return
        rest = f"bytes={self.have}-" if self.have else None
        with _request(self.repo, self.listing, self.file, rest) as response:
            if self.have and response.status_code != 206:  # it ignores the range: from the start
                self.stream.truncate(0)
                self.moved(-self.have)
                self.have, self.digest = 0, _new_digest(self.file)
            try:
                for piece in response.iter_bytes():  # as they come: pieces of a size are held back
                    if self.have + len(piece) > self.file.bytes:
                        raise HubError(
                            f"{self.repo.name}: {self.file.path} is longer on the hub than its"
                            f" listing says ({self.file.bytes:,} bytes); run again"
                        )
                    self.stream.write(piece)
                    self._count(piece)
            finally:
                self.stream.flush()
        if self.have < self.file.bytes:
            raise EndsEarlyError(f"{self.repo.name}: {self.file.path} ends early on the hub")
