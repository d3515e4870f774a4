"""Chat templates that are given instead of a model's own."""

from pathlib import Path

import pytest

from app.chat.load_settings import KNOWN, read_template
from runtimes.chat import render_chat
from runtimes.errors import RequestError

SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def test_known_ones():
    """As transformers renders the makers' own for the same conversation."""
    assert render_chat(KNOWN["chatml"], SAID) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render_chat(KNOWN["llama3"], SAID[:2], bos_token="<|begin_of_text|>") == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert render_chat(KNOWN["gemma"], SAID[1:], bos_token="<bos>") == (
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(RequestError, match="no system message"):
        render_chat(KNOWN["gemma"], SAID)


def test_a_file_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")
    assert read_template(str(file)) == file.read_text()
    assert read_template("chatml") == KNOWN["chatml"]
    monkeypatch.chdir(tmp_path)
    Path("chatml").write_text("{{ messages[0].content }}")
    assert read_template("chatml") == "{{ messages[0].content }}"  # what is there is meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for m in messages %}\n{{ m.content }\n{% endfor %}", r"compile \(line 2\)"),
        ("{% for m in messages %}{{ m.content }}", r"does not compile \(line 1\)"),
        ("{{ messages.nothing.at_all }}", "refuses this conversation"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses this conversation"),
        ("nothing of it", "leaves out what the user says"),
    ],
)
def test_a_broken_file_says_what_and_where(tmp_path: Path, text: str, said: str):
    file = tmp_path / "own.jinja"
    file.write_text(text)
    with pytest.raises(RequestError, match=said) as raised:
        read_template(str(file))
    assert str(file) in str(raised.value)


def test_what_is_no_file(tmp_path: Path):
    with pytest.raises(RequestError, match="known names are chatml, llama3, gemma"):
        read_template(str(tmp_path / "none.jinja"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="cannot be read"):
        read_template(str(tmp_path / "binary"))
