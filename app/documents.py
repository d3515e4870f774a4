"""Text of PDF files and Word documents (.docx): `Documents`, for messages of the chat and for rows.

Such a file may come from anybody, so a child process (`python -m app.documents`) parses it, with
bounds on its size, time and memory. A PDF is read by pypdf. A .docx is a ZIP archive of XML, of
which every run of text counts, also in text boxes, content controls and tracked insertions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet
from xml.parsers import expat

from runtimes.errors import IngotError, RequestError
from runtimes.machine.linechild import (
    LineChild,
    LineChildError,
    exchange,
    limit_child,
    limit_cpu,
)
from runtimes.machine.processes import ending

if TYPE_CHECKING:
    from zipfile import ZipFile

DocumentKind = Literal["pdf", "docx"]

LIMIT_CPU_S, LIMIT_S = 60, 120.0  # for one document: of a processor, and by the clock
_MOST_BYTES = 64 * 2**20  # of a file
_MOST_UNPACKED = 64 * 2**20  # bytes of XML in a .docx
_MOST_TEXT = 16 * 2**20  # characters
_MOST_PAGES = 20_000
_MEMORY = 2 * 2**30  # bytes of address space of the child
_PIECE = 2**16  # bytes that are unpacked at once


class DocumentError(IngotError):
    """A document cannot be read as text; the message continues its name."""


def document_kind(name: str, head: bytes) -> DocumentKind | None:
    """The kind of a file that is called ``name`` and begins with ``head``, if it is a document."""
    suffix = name.lower().rpartition(".")[2]
    if suffix == "pdf" or head.startswith(b"%PDF-"):
        return "pdf"
    return "docx" if suffix == "docx" else None


_children: WeakSet[LineChild] = WeakSet()


def stop_reading() -> None:
    """End what is being read in any thread, so that a program that ends need not wait for it."""
    for child in list(_children):
        child.close()


class Documents:
    """Context manager: the child process, started for the first document, ended on leaving."""

    def __init__(self) -> None:
        self._child: LineChild | None = None

    def text(self, path: Path, kind: DocumentKind) -> tuple[str, str | None]:
        """All text of a document, and a warning about pages that have none. Blocks.

        Raises DocumentError for a file that has no text or cannot be read, and RequestError
        without pypdf.
        """
        if kind == "pdf" and find_spec("pypdf") is None:
            raise RequestError(
                f"{path} is a PDF, which needs pypdf: pip install 'ingot[documents]'"
            )
        if path.stat().st_size > _MOST_BYTES:
            raise DocumentError(f"it is larger than {_MOST_BYTES / 2**20:.0f} MiB")
        try:
            self._child = self._child or LineChild("app.documents", name="reading documents")
            _children.add(self._child)
            text, warning, wrong = self._child.ask([kind, str(path.absolute())], LIMIT_S)
        except BaseException as error:  # Ctrl-C too: its answer would be taken for the next one's
            self.__exit__()
            if not isinstance(error, LineChildError):
                raise
            why = f"the process that read it died ({ending(error.code)})"
            if error.why == "hung" or ending(error.code) == "SIGXCPU":
                why = f"reading it takes more than {LIMIT_CPU_S} s"
            raise DocumentError(why) from error
        if wrong:
            raise DocumentError(wrong)
        return text, warning

    def __enter__(self) -> Documents:
        """The reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.close()
            self._child = None


# In the child


def _pdf(path: str) -> tuple[str, str | None]:
    """Pages with blank lines between them, then what a form is filled in with."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(path)
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError("it is encrypted: save it without a password")
    except DependencyError:
        raise DocumentError(
            "it is encrypted: save it without encryption, or pip install cryptography"
        ) from None
    if len(reader.pages) > _MOST_PAGES:
        raise DocumentError(f"it has {len(reader.pages):,} pages, above {_MOST_PAGES:,}")
    pages = list(_bounded(page.extract_text() for page in reader.pages))
    fields = {k: v for k, v in (reader.get_form_text_fields() or {}).items() if v}
    blank = pages.count("")
    if blank == len(pages) and not fields:
        raise DocumentError(
            "it has only pictures, and no text: have its text recognized first (ocrmypdf)"
        )
    texts = [text or f"[page {number} has no text]" for number, text in enumerate(pages, 1)]
    if fields:
        texts.append("\n".join(["Form fields:", *(f"{k}: {v}" for k, v in fields.items())]))
    warning = f"{blank} of its {len(pages)} pages have no text: they are blank, or pictures"
    return "\n\n".join(texts), warning if blank else None


def _bounded(texts: Iterator[str]) -> Iterator[str]:
    """``texts`` without space around each. Raises DocumentError once they are too long."""
    size = 0
    for text in texts:
        size += len(text)
        if size > _MOST_TEXT:
            raise DocumentError(f"it has more than {_MOST_TEXT:,} characters of text")
        yield text.strip()


_MAIN = re.compile(
    rb'Target="/?([^"]+)"[^>]*/officeDocument"|/officeDocument"[^>]*Target="/?([^"]+)"'
)
# Around the main part, in this order; what a second one repeats is left out.
_PARTS = (r"header\d*", None, r"footnotes", r"endnotes", r"footer\d*")


def _docx(path: str) -> tuple[str, str | None]:
    """Headers, the text, foot- and endnotes, footers."""
    from zipfile import BadZipFile, ZipFile

    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
            found = _MAIN.search(archive.open("_rels/.rels").read(_PIECE))
            main = (found[1] or found[2]).decode() if found else "word/document.xml"
            folder = re.escape(main.rpartition("/")[0])
            parts = [
                name
                for part in _PARTS
                for name in sorted(names)
                if (name == main if part is None else re.fullmatch(rf"{folder}/{part}\.xml", name))
            ]
            texts = dict.fromkeys(_bounded(_words(archive, parts)))
    except BadZipFile:
        raise DocumentError(
            "it is no Word document of today (.docx), or it is encrypted: save it as .docx"
        ) from None
    return "\n\n".join(filter(None, texts)), None


def _words(archive: ZipFile, parts: list[str]) -> Iterator[str]:
    """The text of each of ``parts``, which may unpack to so many bytes in all."""
    left = _MOST_UNPACKED
    for name in parts:
        part = _WordPart()
        with archive.open(name) as stream:
            while piece := stream.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    raise DocumentError(f"it unpacks to more than {_MOST_UNPACKED / 2**20:.0f} MiB")
                part.parser.Parse(piece)
        part.parser.Parse(b"", True)
        yield "".join(part.pieces)


_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
# What stands elsewhere too, and stops of tabs, which are called as tabs are.
_LEFT_OUT = ("Fallback", "moveFrom", "tabs")


class _WordPart:
    """Text of one XML part. A line is a paragraph or a row of a table, with | between cells."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._taken = False  # inside of a run's text
        self._skipped = self._cells = 0  # depth of elements left out, of cells
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._data
        self.parser.StartDoctypeDeclHandler = self._refuse

    def _refuse(self, *_: object) -> None:
        raise DocumentError("it defines entities, which no Word document does")

    def _start(self, tag: str, _: object) -> None:
        name = tag.rpartition(" ")[2]
        self._skipped += name in _LEFT_OUT
        self._cells += name == "tc"
        self._taken = name == "t"
        if name in _BREAKS and not self._skipped:
            self.pieces.append(_BREAKS[name])

    def _data(self, text: str) -> None:
        if self._taken and not self._skipped:
            self.pieces.append(text)

    def _end(self, tag: str) -> None:
        name = tag.rpartition(" ")[2]
        self._taken = False
        self._skipped -= name in _LEFT_OUT
        self._cells -= name == "tc"
        if self._skipped:
            return
        if name == "p":
            self.pieces.append(" " if self._cells else "\n")
        elif name == "tc":  # its last paragraph has ended with a blank
            self.pieces[-1:] = [" | "]
        elif name == "tr":
            self.pieces[-1:] = ["\n"]


def _answer(kind: DocumentKind, path: str) -> tuple[str, str | None, str | None]:
    """Text, a warning about it, and what is wrong with the document."""
    try:
        text, warning = _pdf(path) if kind == "pdf" else _docx(path)
    except DocumentError as error:
        return "", None, str(error)
    except MemoryError:
        return "", None, "it takes too much memory to read"
    except Exception as error:  # whatever a damaged file makes of a parser
        said = " ".join(str(error).split())[:200]
        return "", None, f"it is damaged, or no {kind.upper()}: {type(error).__name__}: {said}"
    # Halves of surrogate pairs, which broken fonts give, are no text.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    whole = whole.replace("\x00", "\ufffd")
    return whole, warning, None if whole.strip() else "it has no text"


def main() -> None:
    """Read what stdin names, a JSON list of kind and path a line, until it ends."""
    limit_child(_MEMORY)
    questions, answer = exchange()
    for kind, path in questions:
        limit_cpu(LIMIT_CPU_S)
        answer(_answer(kind, path))


if __name__ == "__main__":
    main()
