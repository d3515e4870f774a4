"""Files and folders that were used as MODEL lately, so that a picker can offer them again."""

from pathlib import Path

from app.models.library import library_dir
from quantize.manifest import NAME as MANIFEST
from runtimes.machine.state_file import load_state, save_state

_NAME = "recent"
_AT_MOST = 20


def note_used(model: str | Path) -> None:
    """Put ``model`` first, if it is on disk; a name in the library is listed anyway."""
    path = Path(model)
    if not path.exists():
        return
    absolute = str(path.resolve())
    known = _known()
    if known[:1] != [absolute]:
        others = [text for text in known if text != absolute]
        save_state(_NAME, {"models": [absolute, *others][:_AT_MOST]})


def note_loaded(file: Path) -> None:
    """Remember a file that was loaded, or the folder of files that it belongs to."""
    if not file.resolve().is_relative_to(library_dir().resolve()):
        note_used(file.parent if (file.parent / MANIFEST).is_file() else file)


def recently_used() -> list[Path]:
    """Those that are still there, the latest first."""
    return [path for text in _known() if (path := Path(text)).exists()]


def _known() -> list[str]:
    models = load_state(_NAME).get("models")
    return [str(text) for text in models] if isinstance(models, list) else []
