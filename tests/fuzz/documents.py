"""PDF files and Word documents, damaged, as the child process reads them."""

from __future__ import annotations

import io
import logging
import zipfile

from app import documents
from tests.app.documents import pdf, word
from tests.fuzz.cases import Case, loop
from tests.fuzz.mutate import TEXTS, damaged

_BODY = "<w:p><w:r><w:t>{}</w:t></w:r></w:p><w:tbl><w:tr><w:tc><w:p/></w:tc></w:tr></w:tbl>"


def one(case: Case) -> None:
    random = case.random
    texts = [text.encode("latin-1", "ignore").decode("latin-1") for text in random.sample(TEXTS, 3)]
    if random.random() < 0.5:
        path, kind = pdf(case.folder / "a.pdf", texts), "pdf"
        data = path.read_bytes()
    else:
        path, kind = word(case.folder / "a.docx", _BODY.format("".join(texts))), "docx"
        data = path.read_bytes()
        if random.random() < 0.7:  # what the archive holds, else the archive
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                parts = {name: archive.read(name) for name in archive.namelist()}
            name = random.choice(sorted(parts))
            parts[name] = damaged(parts[name], random)
            with zipfile.ZipFile(path, "w") as archive:
                for part, held in parts.items():
                    archive.writestr(part, held)
            data = b""
    if data:
        path.write_bytes(damaged(data, random))
    text, _, wrong = documents._answer(kind, str(path))
    assert bool(text.strip()) != bool(wrong), (text[:100], wrong)
    text.encode()
    case.figures["refused" if wrong else "read"] += 1


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    return loop("documents", one, seconds, seed, count)
