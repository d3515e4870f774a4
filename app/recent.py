"""Files and folders that were used as MODEL lately, so that a picker can offer them again."""

from __future__ import annotations

from pathlib import Path

from runtimes.remembered import recall, remember

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
        remember(_NAME, {"models": [absolute, *others][:_AT_MOST]})


def recently_used() -> list[Path]:
    """Those that are still there, the latest first."""
    return [path for text in _known() if (path := Path(text)).exists()]


def _known() -> list[str]:
    models = recall(_NAME).get("models")
    return [str(text) for text in models] if isinstance(models, list) else []
