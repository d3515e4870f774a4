"""Downloaded repositories below the cache folder.

::

    hub/ORG--NAME/refs/REVISION           the commit that a branch or tag was at the last look
    hub/ORG--NAME/blobs/CHECKSUM          each content once; `.partial` while it is not whole
    hub/ORG--NAME/COMMIT/listing.json     what the repository holds at that commit
    hub/ORG--NAME/COMMIT/NAME/...         the files: hard links to the blobs

The folder's own name is the model's, because converters name files and find special tokens by it.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from quantize.disk import FULL, full_disk_explained, write_atomically
from quantize.fromjson import from_json
from quantize.hub.client import Hub, Listing, RemoteFile, check_path
from quantize.hub.errors import HubError, OfflineError
from quantize.hub.names import HubName
from quantize.hub.transfer import checksum, fetch_files
from quantize.progress.console import Reporter
from runtimes.paths import cache_dir

# Files above this are not served by plain HTTP (huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE).
_LARGEST = 50_000_000_000


@dataclass(frozen=True, slots=True)
class Store:
    """The downloads of one repository."""

    name: HubName

    @property
    def base(self) -> Path:
        """The folder of this repository; it need not exist."""
        return cache_dir() / "hub" / self.name.repo.replace("/", "--")

    def folder(self, commit: str) -> Path:
        """Where the files of ``commit`` lie."""
        return self.base / commit / self.name.model

    def listing(self, hub: Hub, progress: Reporter) -> Listing:
        """What the repository holds. A commit that was looked at before needs no network; without
        a connection a branch or tag means what it meant at the last look, which is said.

        Raises as ``Hub.listing``.
        """
        if self.name.is_commit and (known := self._known(self.name.revision)):
            return known
        try:
            listing = hub.listing(self.name, progress)
        except OfflineError as error:
            known = self._known(self._ref())
            if known is None:
                raise
            progress.note(f"{error}; continuing with what was downloaded of {known.commit[:12]}")
            return known
        write_atomically(
            self.base / listing.commit / "listing.json", json.dumps(asdict(listing), indent=1)
        )
        write_atomically(self.base / "refs" / quote(self.name.revision, safe=""), listing.commit)
        return listing

    def missing(self, listing: Listing, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Those of ``files`` that are not downloaded yet."""
        folder = self.folder(listing.commit)
        return [f for f in files if not _is_there(folder / f.path, f)]

    def bring(
        self, hub: Hub, listing: Listing, files: Sequence[RemoteFile], progress: Reporter
    ) -> Path:
        """Download those of ``files`` that are not there; the folder that holds them.

        Raises HubError, UsageError, or DiskFullError before anything that does not fit.
        """
        folder = self.folder(listing.commit)
        missing = self.missing(listing, files)
        if not missing:
            return folder
        for file in missing:
            check_path(file.path, self.name)
            if file.bytes > _LARGEST:
                raise HubError(
                    f"{self.name}: {file.path} is {file.bytes / 1e9:.0f} GB; files above 50 GB are"
                    f" not served by plain HTTP: fetch the model with `hf download {self.name.repo}"
                    " --local-dir FOLDER` and give that folder"
                )
        blobs = self.base / "blobs"
        self._take_from_other_cache(listing, missing, blobs, progress)
        fetch_files(hub, self.name, listing, missing, blobs, progress, "downloading")
        with full_disk_explained(self.base):
            for file in missing:
                _link(blobs / file.key, folder / file.path)
        return folder

    def _known(self, commit: str | None) -> Listing | None:
        if commit is None:
            return None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            text = (self.base / commit / "listing.json").read_text(encoding="utf-8")
            listing = from_json(Listing, json.loads(text))
            return listing if listing.commit == commit else None
        return None

    def _ref(self) -> str | None:
        try:
            path = self.base / "refs" / quote(self.name.revision, safe="")
            return path.read_text(encoding="utf-8").strip()
        except OSError:
            return None

    def _take_from_other_cache(
        self, listing: Listing, files: Sequence[RemoteFile], blobs: Path, progress: Reporter
    ) -> None:
        """Take what huggingface_hub's own cache holds already, if its checksum is right."""
        from huggingface_hub import try_to_load_from_cache

        found = {
            file: try_to_load_from_cache(listing.repo, file.path, revision=listing.commit)
            for file in files
            if not (blobs / file.key).exists()
        }
        there = {file: Path(path) for file, path in found.items() if isinstance(path, str)}
        if not there:
            return
        with progress.stage("checking what huggingface_hub's cache has"):
            for file, path in there.items():
                if checksum(path, file):
                    _link(path.resolve(), blobs / file.key)


def _is_there(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.bytes


def _link(source: Path, target: Path) -> None:
    """Put ``source`` at ``target``, as a hard link where the disk allows it, else as a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError as error:
        if error.errno in FULL:
            raise
        shutil.copyfile(source, partial)
    partial.replace(target)
