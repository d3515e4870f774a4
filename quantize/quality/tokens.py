"""The token gate: a conversion is wrong until its tokens equal the original's.

Fresh vocabularies fail silently otherwise: the file loads, answers, and is a little worse.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quantize.errors import TokenMismatchError
from quantize.manifest import TokenParity
from quantize.process import run_child

_SHOWN = 3  # differing lines in an error


@dataclass(frozen=True, slots=True)
class Reference:
    """What the original tokenizer makes of the test lines and conversations."""

    lines: list[str]
    ids: list[list[int]]
    special_ids: list[list[int]]
    chats: list[list[dict[str, str]]]
    chat_ids: list[list[int]]
    normal_form: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One text that came out differently."""

    text: str
    original: list[int]
    built: list[int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A built file's tokenizer against the original; ``note`` says what was left out and why."""

    compared: int
    differences: tuple[Difference, ...]
    note: str | None = None

    @property
    def parity(self) -> TokenParity:
        """The two numbers for the manifest."""
        return TokenParity(lines=self.compared, differences=len(self.differences))


def make_reference(model: Path, work: Path, *, trust_remote_code: bool = False) -> Reference:
    """Run the original tokenizer. Raises ToolError when it does not load."""
    answer = run_child(
        "quantize.quality.tokens_child:reference",
        {"model": str(model), "trust_remote_code": trust_remote_code},
        what="loading the original tokenizer",
        work=work,
    )
    return Reference(**answer)


def compare_built(
    path: Path, reference: Reference, kind: Literal["gguf", "onnx"], work: Path
) -> Comparison:
    """Compare the tokenizer of a GGUF file or ONNX folder with the original."""
    answer: dict[str, Any] = run_child(
        "quantize.quality.tokens_child:built",
        {
            "path": str(path),
            "lines": reference.lines,
            "chats": reference.chats,
            "special": len(reference.special_ids),
        },
        what=f"tokenizing with {path.name}",
        work=work,
    )
    texts = [
        *reference.lines,
        *(f"{line} (with BOS/EOS)" for line in reference.lines[: len(reference.special_ids)]),
        *(f"chat: {messages}" for messages in reference.chats),
    ]
    original = [*reference.ids, *reference.special_ids, *reference.chat_ids]
    built = [*answer["ids"], *answer["special_ids"], *answer["chat_ids"]]
    return _compare(texts, original, built, reference.normal_form if kind == "gguf" else None)


def compare_vocabulary(path: Path, reference: Reference, work: Path) -> Comparison:
    """Compare a GGUF file that holds the vocabulary alone."""
    built = run_child(
        "quantize.quality.tokens_child:vocabulary",
        {"path": str(path), "lines": reference.lines},
        what="tokenizing with the converted vocabulary",
        work=work,
    )
    return _compare(reference.lines, reference.ids, built, reference.normal_form)


def require_parity(comparison: Comparison, name: str) -> None:
    """Raise TokenMismatchError showing the first lines that differ, if any do."""
    if not comparison.differences:
        return
    shown = "\n".join(
        f"  {difference.text!r}\n    original {_ids(difference.original)}"
        f"\n    {name} {_ids(difference.built)}"
        for difference in comparison.differences[:_SHOWN]
    )
    raise TokenMismatchError(
        f"{name}: {len(comparison.differences)} of {comparison.compared} test lines give other"
        f" tokens than the original tokenizer, so its answers would be worse than they need be:\n"
        f"{shown}\nNothing was published for it; --allow-token-mismatch publishes it all the same"
    )


def _compare(
    texts: Sequence[str],
    original: Sequence[list[int]],
    built: Sequence[list[int]],
    normal_form: str | None,
) -> Comparison:
    """``normal_form`` leaves out lines that the original tokenizer rewrites first.

    llama.cpp's vocabulary has no normalizer, so that text in another Unicode form than the one a
    tokenizer was trained on is split differently whatever the file says.
    """
    kept = [
        (text, want, got)
        for text, want, got in zip(texts, original, built, strict=True)
        if normal_form is None or unicodedata.normalize(normal_form, text) == text  # type: ignore[arg-type]
    ]
    left_out = len(texts) - len(kept)
    return Comparison(
        compared=len(kept),
        differences=tuple(Difference(*item) for item in kept if item[1] != item[2]),
        note=f"{left_out} lines that are not in Unicode form {normal_form} were not compared:"
        " llama.cpp does not normalize text"
        if left_out
        else None,
    )


def _ids(ids: Sequence[int]) -> str:
    text = " ".join(map(str, ids[:24]))
    return f"{text} ..." if len(ids) > 24 else text
