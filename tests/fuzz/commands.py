"""`ingot` commands in this process, and what no command may do."""

from __future__ import annotations

import contextlib
import io
import re

from app.cli.main import main
from tests.fuzz.cases import Case

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def ingot(case: Case, *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr. Raises AssertionError for an internal error, a traceback, or a
    control character on stderr."""
    given = [str(one) for one in arguments]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(given)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))  # type: ignore[attr-defined]
    case.figures[f"exit_{code}"] += 1
    said = f"ingot {' '.join(given[:2])}: {texts[1][:1000]}"
    assert code in (0, 1, 2, 3, 4), f"exit {code}: {said}"
    assert "Traceback" not in texts[1], said
    assert not _CONTROL.search(texts[1]), f"control characters on stderr: {said!r}"
    return code, texts[0], texts[1]
