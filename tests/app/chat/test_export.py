"""A chat written to a file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from app.chat.conversation import Conversation
from app.chat.export import (
    ExistsError,
    ExportError,
    as_json,
    as_markdown,
    export,
    suggested_path,
)
from app.chat.store.records import AnswerFigures, Attachment, State
from app.chat.store.store import ChatStore
from runtimes.errors import RequestError
from tests.hostile import HOSTILE, harmful

FIGURES = AnswerFigures(12, 4, 30, 0.25, 96.0, 51.25, 0.9, "length")


@pytest.fixture
def talk(conversation: Conversation, store: ChatStore) -> Conversation:
    conversation.update(system="Be brief.\nAlways.", sampling={"temperature": 0.5})
    one = conversation.say("Show me <b>code</b>: größe/🦊", [Attachment("a.txt", "alpha")])
    chat = conversation.chat.id
    first = store.begin_answer(chat, one.id, model="pebble · q8_0", file="f", runtime="llamacpp")
    text = "<think>\nhm\n\nhm\n</think>\n\nHere:\n```py\nx = 1"
    store.end_answer(replace(first, text=text, token_ids=(1, 2), state=State.CUT, figures=FIGURES))
    other = store.begin_answer(chat, one.id, model="other")
    store.end_answer(
        replace(other, text="never mind", token_ids=(), state=State.FAILED, error="it died")
    )
    store.update_chat(chat, leaf=first.id)
    return Conversation.open(store, chat)


def test_markdown_has_the_branch_that_is_shown(talk: Conversation):
    text = as_markdown(talk)
    title, system, you, files, asked, heading, thinking, answer, notes = (
        "# Show me \\<b\\>code\\</b\\>: größe/🦊",
        "> System: Be brief.\n> Always.",
        "## You · ",
        "File a.txt:\n```\nalpha\n```",
        "Show me &lt;b>code&lt;/b>: größe/🦊",
        "## pebble · q8\\_0 · ",
        "> Thinking:\n>\n> hm\n>\n> hm",
        "Here:\n```py\nx = 1\n```",  # closed, so that it does not swallow the rest
        "*cut at its longest · 30 tokens · decode 51.2 tok/s · first token 250 ms · prefill 96.0",
    )
    at = 0
    for part in (title, system, you, files, asked, heading, thinking, answer, notes):
        assert part in text[at:]
        at = text.index(part, at) + len(part)
    assert "never mind" not in text
    talk.switch(talk.path[-1].id, 1)
    assert "*failed: it died*" in as_markdown(talk)


def test_json_has_everything(talk: Conversation):
    data = json.loads(as_json(talk))
    assert (data["format"], data["version"]) == ("ingot-chat", 1)
    assert data["chat"]["system"] == "Be brief.\nAlways."
    assert data["chat"]["sampling"] == {"temperature": 0.5}
    assert data["branch"] == [m.id for m in talk.path]
    asked, first, other = data["messages"]
    assert asked["attachments"] == [{"name": "a.txt", "text": "alpha"}]
    assert first["figures"]["decode_tps"] == 51.25
    assert (other["text"], other["error"]) == ("never mind", "it died")
    assert first["created"].endswith("+00:00")


def test_files_are_written_whole_or_not_at_all(talk: Conversation, tmp_path: Path):
    file = tmp_path / "chat.md"
    assert export(talk, file) == file
    assert file.read_text(encoding="utf-8") == as_markdown(talk)
    with pytest.raises(ExistsError, match="there already"):
        export(talk, file)
    assert json.loads(export(talk, tmp_path / "chat.JSON").read_text(encoding="utf-8"))
    with pytest.raises(RequestError, match=r"\.md"):
        export(talk, tmp_path / "chat.pdf")
    with pytest.raises(ExportError, match="cannot be written"):
        export(talk, tmp_path / "absent" / "chat.md")
    link = tmp_path / "link.md"
    link.symlink_to(file)
    file.write_text("mine")
    export(talk, link, overwrite=True)
    assert link.is_symlink()
    assert file.read_text(encoding="utf-8") == as_markdown(talk)
    (tmp_path / "folder.md").mkdir()
    inside = export(talk, tmp_path / "folder.md")
    assert inside.parent == tmp_path / "folder.md"


def test_a_name_is_suggested(talk: Conversation, tmp_path: Path):
    path = suggested_path(talk, folder=tmp_path)
    assert path == tmp_path / "Show-me-b-code-b-größe.md"
    path.touch()
    assert suggested_path(talk, folder=tmp_path).name == "Show-me-b-code-b-größe-2.md"
    talk.rename("/../..")
    assert suggested_path(talk, tmp_path) == tmp_path / "chat.md"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_names_are_text_and_messages_do_not_act(conversation: Conversation, text: str):
    store, chat = conversation.store, conversation.chat.id
    store.update_chat(chat, title=text, system=text)
    asked = conversation.say(text, [Attachment(text, text)])
    for said in (text, f"<think>{text}</think>{text}", f"```html\n{text}\n```\n\n{text}"):
        answer = store.begin_answer(chat, asked.id, model=text, file=text)
        store.end_answer(replace(answer, text=said, token_ids=(), state=State.FAILED, error=text))
        store.update_chat(chat, leaf=answer.id)
        page = as_markdown(Conversation.open(store, chat))
        assert not harmful(page)
        assert not ACTING & acting(page)
        assert not harmful(as_json(Conversation.open(store, chat)))


@pytest.mark.parametrize(
    "text",
    [
        "`a` <img src=x>",
        "| a | b |\n|---|---|\n| `x | <img src=1> ` |",
        "a\n-\n`x\n\n<b>`",
        "<script>\n</script> `\na `<img>`",
        "<!--\n\n```\n\n<img>",
        "- ```\n<img>\n- ```",
        "> ```\n<img>",
        "\\`<img>`",
        "\\\\![a](http://x/y.png)",
        "![a][b]\n\n[b]: http://x/y.png",
        "![a\nb](http://x/y.png)",
    ],
)
def test_code_hides_no_html(conversation: Conversation, text: str):
    """Nor does a fence that one message opens and another one closes."""
    conversation.say(f"{text}\n\n```")
    asked = conversation.say(f"```\n{text}\n```\n\n{text}")
    page = as_markdown(conversation)
    assert not ACTING & acting(page), page
    assert asked.text.split("\n")[1] in page or "<" in text or "!" in text


def test_code_stays_as_it_is(conversation: Conversation):
    code = "Take `Vec<T>`, 1 < 2, a<b:\n\n```html\n<img src=x>\n```\n\n    <b>indented</b>"
    conversation.say(code)
    assert code in as_markdown(conversation)


ACTING = {"html_block", "html_inline", "image"}


def acting(page: str) -> set[str]:
    """The kinds of what is in ``page``, in Markdown with tables and without."""
    kinds = set()
    for parser in (MarkdownIt("commonmark"), MarkdownIt("gfm-like", {"html": True})):
        for block in parser.parse(page):
            kinds |= {block.type, *(child.type for child in block.children or ())}
    return kinds
