"""PDF files and Word documents, made for tests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pdf(path: Path, texts: Sequence[str], password: tuple[str, str] | None = None) -> Path:
    """A page for each text; one without text has none. ``password``: the user's, the owner's."""
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    for text in texts:
        page = writer.add_blank_page(300, 300)
        if text:
            page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
            stream = DecodedStreamObject()
            stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode("latin-1"))
            page[NameObject("/Contents")] = writer._add_object(stream.flate_encode())
    if password is not None:
        writer.encrypt(*password, algorithm="RC4-128")
    writer.write(path)
    return path


def word(path: Path, body: str, parts: Mapping[str, str] | None = None) -> Path:
    """A .docx of XML as it stands in a body, and of other parts."""
    wrapped = f'<w:document xmlns:w="{W}" xmlns:mc="urn:mc"><w:body>{body}</w:body></w:document>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "_rels/.rels",
            '<Relationships xmlns="urn:r"><Relationship Type="http://x/officeDocument"'
            ' Id="a" Target="word/main.xml"/></Relationships>',
        )
        archive.writestr("word/main.xml", wrapped)
        for name, xml in (parts or {}).items():
            archive.writestr(name, f'<w:x xmlns:w="{W}">{xml}</w:x>')
    return path


def written(document: Any) -> bytes:
    """The bytes of a python-docx document."""
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()
