"""Models that bring Python code of their own. None of it runs unless the user says so."""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantize.errors import UsageError
from quantize.source.files import read_json

_FLAG = "--trust-remote-code"


def require_no_code(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Raise UsageError when using ``folder`` would need, or could run, code that it brings.

    Returns a note when config.json names such code but transformers has the model built in and the
    code itself is not there. Files with code are refused even then: the GGUF converter loads some
    tokenizers with trust in whatever lies in the folder.
    """
    tokenizer = folder / "tokenizer_config.json"
    tokens = read_json(tokenizer, "the tokenizer cannot be read") if tokenizer.is_file() else {}
    if not config.get("auto_map") and not tokens.get("auto_map"):
        return None
    code = sorted(path.name for path in folder.glob("*.py"))
    where = "tokenizer_config.json" if tokens.get("auto_map") else "config.json"
    if built_in(config) and not tokens.get("auto_map"):
        if not code:
            return "config.json names code of the model's own; the built-in model is used instead"
        raise UsageError(
            f"{folder} brings Python code ({', '.join(code[:3])}) that converters could run, and"
            f" does not need it: remove it, or give {_FLAG} if you trust it"
        )
    raise UsageError(
        f"{folder} needs Python code that the model brings along (auto_map in {where}). Read it"
        f" first; if you trust it, give {_FLAG}"
    )


def built_in(config: Mapping[str, Any]) -> bool:
    """Whether the installed transformers defines the model's class. Nothing is imported: that takes
    seconds, and torch."""
    kind, classes = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str) or not isinstance(classes, list) or not classes:
        return False
    spec = importlib.util.find_spec("transformers")
    folder = kind.replace("-", "_")
    if spec is None or not spec.submodule_search_locations or not re.fullmatch(r"\w+", folder):
        return False
    models = Path(next(iter(spec.submodule_search_locations))) / "models" / folder
    line = re.compile(rf"^class {re.escape(str(classes[0]))}\b", re.MULTILINE)
    sources = (path.read_text(encoding="utf-8") for path in models.glob("modeling_*.py"))
    return any(line.search(text) for text in sources)
