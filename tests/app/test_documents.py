"""Text of PDF files and Word documents, and what hostile ones may do: nothing."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path
from threading import Timer

import docx
import pypdf
import pytest

from app import documents
from app.documents import DocumentError, Documents, document_kind
from runtimes.errors import RequestError
from tests.app.documents import pdf, word, written


def test_a_pdf_is_read_whole(tmp_path: Path) -> None:
    file = pdf(tmp_path / "a.pdf", ["one \\(1\\)", "", "three"])
    with Documents() as reader:
        text, warning = reader.text(file, "pdf")
        assert text == "one (1)\n\n[page 2 has no text]\n\nthree"
        assert warning == "1 of its 3 pages have no text: they are blank, or pictures"
        # One that only its owner may change is open to all.
        assert reader.text(pdf(tmp_path / "b.pdf", ["x"], ("", "owner")), "pdf") == ("x", None)
        writer = pypdf.PdfWriter(clone_from=pdf(tmp_path / "c.pdf", [""]))
        field = pypdf.generic.DictionaryObject()
        for name, value in (("/FT", "/Tx"), ("/T", "Name"), ("/V", "Ada")):
            kind = pypdf.generic.NameObject if name == "/FT" else pypdf.generic.TextStringObject
            field[pypdf.generic.NameObject(name)] = kind(value)
        form = pypdf.generic.DictionaryObject()
        fields = pypdf.generic.ArrayObject([writer._add_object(field)])
        form[pypdf.generic.NameObject("/Fields")] = fields
        writer.root_object[pypdf.generic.NameObject("/AcroForm")] = form
        writer.write(tmp_path / "c.pdf")
        text, _ = reader.text(tmp_path / "c.pdf", "pdf")
        assert text == "[page 1 has no text]\n\nForm fields:\nName: Ada"


def test_a_word_document_is_read_whole(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_heading("Title", 1)
    paragraph = document.add_paragraph("Hello ")
    paragraph.add_run("bold").bold = True
    paragraph.paragraph_format.tab_stops.add_tab_stop(1000)  # no tab itself
    paragraph.add_run("\ttab\nline")
    table = document.add_table(2, 2)
    for row in range(2):
        for column in range(2):
            table.cell(row, column).text = f"{row}{column}"
    document.add_paragraph("end")
    document.sections[0].header.paragraphs[0].text = "Letterhead"
    file = tmp_path / "a.DOCX"
    file.write_bytes(written(document))
    said = "Letterhead\n\nTitle\nHello bold\ttab\nline\n00 | 01\n10 | 11\nend"
    body = (
        "<w:p><w:ins><w:r><w:t>put in </w:t></w:r></w:ins><w:del><w:r><w:delText>gone</w:delText>"
        "</w:r></w:del><w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom></w:p>"
        "<w:sdt><w:sdtContent><w:p><w:r><w:t>control</w:t></w:r></w:p></w:sdtContent></w:sdt>"
        "<mc:AlternateContent><mc:Choice><w:p><w:r><w:t>box</w:t></w:r></w:p></mc:Choice>"
        "<mc:Fallback><w:p><w:r><w:t>box</w:t></w:r></w:p></mc:Fallback></mc:AlternateContent>"
    )
    run = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>".format
    parts = {"word/footnotes.xml": run("note"), "word/header1.xml": run("top"),
             "word/header2.xml": run("top"), "word/comments.xml": run("comment")}  # fmt: skip
    with Documents() as reader:
        assert document_kind(file.name, b"") == "docx"
        assert reader.text(file, "docx") == (said, None)
        text, _ = reader.text(word(tmp_path / "b.docx", body, parts), "docx")
        assert text == "top\n\nput in \ncontrol\nbox\n\nnote"


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path, why: str) -> None:
        kind = document_kind(file.name, b"")
        assert kind is not None
        with pytest.raises(DocumentError, match=why):
            reader.text(file, kind)

    def made(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    run = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>".format
    with Documents() as reader:
        refused(pdf(tmp_path / "a.pdf", ["x"], ("secret", "owner")), "encrypted: save it without")
        refused(pdf(tmp_path / "b.pdf", ["", ""]), "only pictures")
        refused(made("c.pdf", b"%PDF-1.7\n garbage"), "damaged, or no PDF")
        good = pdf(tmp_path / "d.pdf", ["deep"]).read_bytes()
        nested = b"[" * 20_000 + b"]" * 20_000
        refused(made("e.pdf", good.replace(b"/Type /Pages", b"/Deep " + nested)), "damaged|no text")
        refused(made("f.docx", b"\xd0\xcf\x11\xe0 an old one"), "no Word document of today")
        refused(word(tmp_path / "g.docx", ""), "no text")
        refused(word(tmp_path / "h.docx", "<w:p>"), "damaged, or no DOCX")
        bomb = word(tmp_path / "i.docx", run("x") + " " * (documents._MOST_UNPACKED + 1))
        assert bomb.stat().st_size < 200_000
        refused(bomb, "unpacks to more than 64 MiB")
        entities = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x>&b;</x>'
        with zipfile.ZipFile(tmp_path / "j.docx", "w") as archive:
            archive.writestr("_rels/.rels", "")
            archive.writestr("word/document.xml", entities)
        refused(tmp_path / "j.docx", "defines entities")
        deep = "<w:p>" * 20_000 + "<w:r><w:t>x</w:t></w:r>" + "</w:p>" * 20_000
        assert reader.text(word(tmp_path / "k.docx", deep), "docx")[0] == "x"
        with (tmp_path / "l.pdf").open("wb") as sparse:
            sparse.truncate(10 * 2**30)
        refused(tmp_path / "l.pdf", "larger than 64 MiB")
        # Whatever became of one document, the next one is read.
        assert reader.text(made("m.pdf", good), "pdf") == ("deep", None)
    monkeypatch.setattr(documents, "find_spec", lambda _: None)
    with pytest.raises(RequestError, match=r"needs pypdf: pip install 'ingot\[documents\]'"):
        Documents().text(tmp_path / "m.pdf", "pdf")


def test_a_parser_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LIMIT_S", 1.0)
    slow = pdf(tmp_path / "a.pdf", ["x) Tj (" * 3_000_000])
    with Documents() as reader:
        begun = time.monotonic()
        with pytest.raises(DocumentError, match="takes more than"):
            reader.text(slow, "pdf")
        assert time.monotonic() - begun < 5
        monkeypatch.setattr(documents, "LIMIT_S", 60.0)
        Timer(0.3, documents.stop_reading).start()  # as an app that ends does
        begun = time.monotonic()
        with pytest.raises(DocumentError, match="died"):
            reader.text(slow, "pdf")
        assert time.monotonic() - begun < 30
        assert reader.text(pdf(tmp_path / "b.pdf", ["next"]), "pdf") == ("next", None)
