"""The token gate: a conversion is wrong until its tokens equal the original's.

Fresh vocabularies fail silently otherwise: the file loads, answers, and is a little worse.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from quantize.children.process import Progress, run_child
from quantize.errors import TokenMismatchError
from quantize.manifest import TokenParity
from quantize.quality import tokens_child
from quantize.recipes.recipe import Format
from runtimes.models.gguf import read_header

_SHOWN = 3  # differing lines in an error
_LINE = 100  # characters of such a line
_BEFORE, _AFTER = 3, 8  # ids of it that are shown, from its first other id on


@dataclass(frozen=True, slots=True)
class Reference:
    """What the original tokenizer makes of the test lines and conversations."""

    lines: list[str]
    ids: list[list[int]]
    special_ids: list[list[int]]
    chats: list[list[dict[str, str]]]
    chat_ids: list[list[int]]
    normal_form: str | None
    texts: dict[str, str] = field(default_factory=dict)  # what each of the ids stands for
    pre_tokenizer: str = ""  # how it splits text first


@dataclass(frozen=True, slots=True)
class Difference:
    """One text that came out differently."""

    text: str
    original: list[int]
    built: list[int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A built file's tokenizer against the original."""

    compared: int
    differences: tuple[Difference, ...]
    note: str | None = None  # what was left out and why
    # By the original and by the file: what ids stand for, how text is split before the vocabulary.
    texts: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    split: tuple[str, str] = ("", "")

    @property
    def parity(self) -> TokenParity:
        """The two numbers for the manifest."""
        return TokenParity(lines=self.compared, differences=len(self.differences))


def make_reference(
    model: Path,
    work: Path,
    *,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Reference:
    """Run the original tokenizer. Raises ToolError when it does not load."""
    answer = run_child(
        partial(tokens_child.reference, model, trust_remote_code=trust_remote_code),
        what="loading the original tokenizer",
        work=work,
        progress=progress,
        torch=True,
    )
    return Reference(**answer)


def compare_built(path: Path, reference: Reference, kind: Format, work: Path) -> Comparison:
    """Compare the tokenizer of a GGUF file or ONNX folder with the original."""
    special = len(reference.special_ids)
    answer = run_child(
        partial(tokens_child.built, path, reference.lines, reference.chats, special),
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
    normal_form = reference.normal_form if kind == "gguf" else None
    return replace(
        _compare(texts, original, built, normal_form),
        texts=(reference.texts, answer["texts"]),
        split=(reference.pre_tokenizer, _named_pre_tokenizer(path) if kind == "gguf" else ""),
    )


def compare_vocabulary(path: Path, reference: Reference, work: Path) -> Comparison:
    """Compare a GGUF file that holds the vocabulary alone."""
    built = run_child(
        partial(tokens_child.vocabulary, path, reference.lines),
        what="tokenizing with the converted vocabulary",
        work=work,
    )
    return _compare(reference.lines, reference.ids, built, reference.normal_form)


def require_parity(comparison: Comparison, name: str) -> None:
    """Raise TokenMismatchError showing where the first lines differ, if any do, and what splits
    text in both."""
    if not comparison.differences:
        return
    shown = "\n".join(_shown(d, comparison.texts, name) for d in comparison.differences[:_SHOWN])
    original, named = comparison.split
    why = f"\nThe original splits text by {original} first." if original else ""
    if named:
        why += (
            f"\n{name} splits it by {named!r}: llama.cpp knows pre-tokenizers by name, and this is"
            " the one that its converter recognised, or else the nearest. Is tokenizer.json as the"
            " model was published? Programs that rewrite it may lose a step, such as the"
            " splitting of digits. ONNX files keep tokenizer.json: --to onnx builds them."
        )
    raise TokenMismatchError(
        f"{name}: {len(comparison.differences)} of {comparison.compared} test lines give other"
        f" tokens than the original tokenizer, so its answers would be worse than they need be.\n"
        f"The first ones, around their first other token:\n{shown}{why}\n"
        "Nothing was published for it; --allow-token-mismatch publishes it all the same"
    )


def _shown(
    difference: Difference, texts: tuple[Mapping[str, str], Mapping[str, str]], name: str
) -> str:
    """A line and, by both tokenizers, what stands around the first id that differs."""
    pairs = zip(difference.original, difference.built, strict=False)
    shorter = min(len(difference.original), len(difference.built))
    first = next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)
    line = repr(difference.text[:_LINE]) + " ..." * (len(difference.text) > _LINE)
    sides = (("original", difference.original), (name, difference.built))
    return "\n".join(
        [f"  {line}, token {first + 1}"]
        + [
            f"    {who}: {_around(ids, first, known)}"
            for (who, ids), known in zip(sides, texts, strict=True)
        ]
    )


def _around(ids: Sequence[int], first: int, texts: Mapping[str, str]) -> str:
    """Ids with their texts from shortly before the position ``first`` on."""
    begin, end = max(0, first - _BEFORE), first + _AFTER
    known = [(token, texts.get(str(token))) for token in ids[begin:end]]
    said = [f"{token} {text!r}" if text is not None else str(token) for token, text in known]
    more = ["..."] * (end < len(ids)) if ids[first:] else ["(ends here)"]
    return " ".join([*(["..."] * (begin > 0)), *said, *more])


def _named_pre_tokenizer(path: Path) -> str:
    """What a GGUF file says of how text is split before its vocabulary does it."""
    found = read_header(path).metadata
    kind = found.get("tokenizer.ggml.pre") or found.get("tokenizer.ggml.model")
    return str(kind or "no name")


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
