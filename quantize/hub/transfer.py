"""Transfers: downloads that resume, the store of downloaded repositories, and uploads.

huggingface_hub 2.4 downloads to a temporary file of a random name and deletes it when it fails, so
an interrupted run starts over. Here the unfinished file is named after the checksum of what it will
be: any later run, of any revision that holds the same content, resumes from its end. The store is
below the cache folder::

    hub/ORG--NAME/refs/REVISION           the commit that a branch or tag was at the last look
    hub/ORG--NAME/blobs/CHECKSUM          each content once; `.partial` while it is not whole
    hub/ORG--NAME/COMMIT/listing.json     what the repository holds at that commit
    hub/ORG--NAME/COMMIT/NAME/...         the files: hard links to the blobs

The folder's own name is the model's, because converters name files and find special tokens by it.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from quantize.disk import (
    FULL,
    files_of,
    full_disk_explained,
    human,
    made_whole,
    require_room,
    write_atomically,
)
from quantize.errors import UsageError
from quantize.fromjson import GARBLED, from_json
from quantize.hub.client import (
    EndsEarlyError,
    Hub,
    HubError,
    HubName,
    Listing,
    OfflineError,
    RemoteFile,
    Repository,
    parse_hub_name,
    start_of,
)
from quantize.manifest import NAME, entry_path, load_manifest
from quantize.progress import Reporter
from runtimes.machine.locks import Lock, another_run
from runtimes.paths import cache_dir
from runtimes.untrusted import check_digest, inside, load_json

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

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
        with _request(repo, listing, file, f"bytes=0-{count - 1}") as response:
            return start_of(response, count)  # all of it comes, where the range is ignored

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


def _request(
    repo: Repository, listing: Listing, file: RemoteFile, span: str | None
) -> AbstractContextManager[httpx2.Response]:
    """The content of a file, or a ``span`` of it, as it comes."""
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=repo.hub.endpoint)
    # No compression: lengths and ranges are the file's.
    headers = {"Accept-Encoding": "identity"}
    if span is not None:
        headers["Range"] = span
    # On a redirect to another host (the storage behind the hub) httpx2 leaves the token out.
    return repo.hub.stream(url, headers, follow_redirects=True)


@dataclass
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


# Files above this are not served by plain HTTP (huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE).
_LARGEST = 50_000_000_000


class Store(Repository):
    """A repository and what is downloaded of it."""

    @property
    def base(self) -> Path:
        """The folder of this repository; it need not exist."""
        return cache_dir() / "hub" / self.name.repo.replace("/", "--")

    def folder(self, commit: str) -> Path:
        """Folder with the files of ``commit``."""
        return self.base / commit / self.name.model

    def listing(self) -> Listing:
        """List what the repository holds. A commit that was looked at before needs no network;
        without a connection a branch or tag means what it meant at the last look, which is said.

        Raises as ``look``.
        """
        if self.name.is_commit and (known := self._known(self.name.revision)):
            return known
        ref = inside(
            self.base / "refs", quote(self.name.revision, safe=""), "the revision", UsageError
        )
        try:
            listing = self.look()
        except OfflineError as error:
            known = self._known(ref.read_text(encoding="utf-8").strip()) if ref.is_file() else None
            if known is None:
                raise
            self.progress.note(
                f"{error}; continuing with what was downloaded of {known.commit[:12]}"
            )
            return known
        write_atomically(self._record(listing.commit), json.dumps(asdict(listing), indent=1))
        write_atomically(ref, listing.commit)
        return listing

    def missing(self, listing: Listing, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Select the ``files`` that are not downloaded yet."""
        there = ((file, self.folder(listing.commit) / file.path) for file in files)
        return [f for f, path in there if not path.is_file() or path.stat().st_size != f.bytes]

    def bring(self, listing: Listing, files: Sequence[RemoteFile]) -> Path:
        """Download those of ``files`` that are not there; the folder that holds them.

        Raises HubError, UsageError, or DiskFullError before anything that does not fit.
        """
        folder, blobs = self.folder(listing.commit), self.base / "blobs"
        missing = self.missing(listing, files)
        for file in missing:
            if file.bytes > _LARGEST:
                raise HubError(
                    f"{self.name}: {file.path} is {file.bytes / 1e9:.0f} GB; files above 50 GB are"
                    f" not served by plain HTTP: fetch the model with `hf download {self.name.repo}"
                    " --local-dir FOLDER` and give that folder"
                )
        if missing:
            self._take_from_other_cache(listing, missing, blobs)
            fetch_files(self, listing, missing, blobs, "downloading")
        with full_disk_explained(self.base):
            for file in missing:
                place = inside(folder, file.path, str(self.name), HubError)
                _link(blobs / file.key, place)
        return folder

    def _record(self, commit: str) -> Path:
        return self.base / commit / "listing.json"

    def _known(self, commit: str) -> Listing | None:
        with contextlib.suppress(OSError, HubError, *GARBLED):
            check_digest(commit, str(self.base), HubError)
            listing = from_json(Listing, load_json(self._record(commit)))
            return listing if listing.commit == commit else None
        return None

    def _take_from_other_cache(
        self, listing: Listing, files: Sequence[RemoteFile], blobs: Path
    ) -> None:
        """Take what huggingface_hub's own cache holds already, if its checksum is right."""
        from huggingface_hub import try_to_load_from_cache

        for file in files:
            path = try_to_load_from_cache(listing.repo, file.path, revision=listing.commit)
            if isinstance(path, str) and not (blobs / file.key).exists():
                with self.progress.stage(f"checking {file.path} of huggingface_hub's cache"):
                    if checksum(Path(path), file):
                        _link(Path(path).resolve(), blobs / file.key)


def _link(source: Path, target: Path) -> None:
    """Put ``source`` at ``target``, as a hard link where the disk allows it, else as a copy."""
    with made_whole(target) as made:
        try:
            os.link(source, made)
        except OSError as error:
            if error.errno in FULL:
                raise
            shutil.copyfile(source, made)


_BESIDE = (NAME, "README.md", "report.html", "report.png")


def require_push(repo: str) -> None:
    """Find out before hours of work whether ``repo`` could be pushed to: its name, and a token that
    the hub accepts. Raises UsageError or HubError."""
    with _writing(repo) as (_, api):
        api.whoami()


def push(folder: Path, repo: str, progress: Reporter) -> str:
    """Upload the files of ``folder``'s manifest, the manifest, the model card and the report to
    ``repo``; the address of the commit's repository.

    A repository that is not there is created, private: what was published by mistake cannot be
    taken back, and making it public is one click. One that is there keeps its visibility, and its
    other files. Everything goes into one commit, so a reader never sees half of it. Files that the
    hub has already are not sent again. Raises UsageError, HubError, or ModelError for a manifest
    that lists a file which is not there.
    """
    with _writing(repo) as (name, api):
        wanted = _files(folder)
        size = sum(path.stat().st_size for path in wanted.values())
        fresh = not api.repo_exists(name.repo)
        if fresh:
            api.create_repo(name.repo, private=True, exist_ok=True)
        with progress.stage(f"uploading {len(wanted)} files, {human(size)}, to {name}"):
            commit = api.upload_folder(
                repo_id=name.repo,
                folder_path=folder,
                allow_patterns=[glob.escape(path) for path in wanted],
                commit_message="Add quantized files with their measurements",
            )
    if fresh:
        progress.note(f"{name} was created as a private repository; its settings make it public")
    return str(commit.repo_url)


def _files(folder: Path) -> dict[str, Path]:
    """Files to upload, each by its name as seen from ``folder``. Raises ModelError for links, which
    could bring any file of this machine to the hub."""
    found = [folder / name for name in _BESIDE if (folder / name).is_file()]
    for entry in load_manifest(folder).files:
        found += files_of(entry_path(folder, entry))
    names = [path.relative_to(folder).as_posix() for path in found]
    return {name: inside(folder, name, f"the folder {folder}") for name in names}


@contextmanager
def _writing(repo: str) -> Iterator[tuple[HubName, HfApi]]:
    """Errors inside say what the user can do."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    name, hub = parse_hub_name(repo), Hub()
    if name is None or "@" in repo:
        raise UsageError(f"--push takes ORG/NAME, not {repo!r}")
    if not hub.has_token:
        raise UsageError(
            "--push needs a token that may write: set HF_TOKEN, or run `hf auth login` once"
        )
    try:
        yield name, hub.api()
    except OfflineModeIsEnabled as error:
        raise HubError("HF_HUB_OFFLINE forbids an upload: unset it") from error
    except (HfHubHTTPError, httpx2.TransportError) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code == 403:
            raise HubError(
                f"the token may not write to {name}: create one with write access to it"
            ) from error
        raise hub.explain(error, name) from error
    except ValueError as error:  # the model card's header, or the storage's answer
        raise HubError(f"{name}: the hub does not take the upload: {error}") from error
