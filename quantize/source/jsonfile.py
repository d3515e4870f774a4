"""JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quantize.errors import SourceError


def read_json(path: Path, meaning: str) -> dict[str, Any]:
    """The object in ``path``. Raises SourceError; ``meaning`` says what its absence means."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourceError(f"{path.parent} has no {path.name}: {meaning}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{path} is not a JSON object: {meaning}")
    return data
