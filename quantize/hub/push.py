"""Upload what a run has published to a repository on the hub."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quantize.disk import human
from quantize.errors import UsageError
from quantize.hub.client import Hub
from quantize.hub.errors import HubError
from quantize.hub.names import HubName, parse_hub_name
from quantize.manifest import NAME, entry_path, load_manifest
from quantize.progress.console import Reporter
from runtimes.untrusted import inside

if TYPE_CHECKING:
    from huggingface_hub import HfApi

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
    """What is uploaded, by its name as seen from ``folder``. Raises ModelError for links, which
    could bring any file of this machine to the hub."""
    found = [folder / name for name in _BESIDE if (folder / name).is_file()]
    for entry in load_manifest(folder).files:
        path = entry_path(folder, entry)
        found += [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
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
