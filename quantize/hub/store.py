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
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from quantize.disk import FULL, full_disk_explained, write_atomically
from quantize.errors import UsageError
from quantize.fromjson import from_json
from quantize.hub.client import Listing, RemoteFile, Repository
from quantize.hub.errors import HubError, OfflineError
from quantize.hub.transfer import checksum, fetch_files
from runtimes.paths import cache_dir
from runtimes.untrusted import check_digest, inside, load_json

# Files above this are not served by plain HTTP (huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE).
_LARGEST = 50_000_000_000


class Store(Repository):
    """A repository and what is downloaded of it."""

    @property
    def base(self) -> Path:
        """The folder of this repository; it need not exist."""
        return cache_dir() / "hub" / self.name.repo.replace("/", "--")

    def folder(self, commit: str) -> Path:
        """Where the files of ``commit`` lie."""
        return self.base / commit / self.name.model

    def listing(self) -> Listing:
        """What the repository holds. A commit that was looked at before needs no network; without
        a connection a branch or tag means what it meant at the last look, which is said.

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
        """Those of ``files`` that are not downloaded yet."""
        folder = self.folder(listing.commit)
        return [
            file
            for file in files
            if not (path := folder / file.path).is_file() or path.stat().st_size != file.bytes
        ]

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
        garbled = (OSError, ValueError, KeyError, TypeError, AttributeError, HubError)
        with contextlib.suppress(*garbled):
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
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent) as made:
        partial = Path(made) / "file"
        try:
            os.link(source, partial)
        except OSError as error:
            if error.errno in FULL:
                raise
            shutil.copyfile(source, partial)
        partial.replace(target)
