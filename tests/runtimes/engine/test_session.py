"""Session files: written whole or not at all, and refused when they are not what is needed."""

from __future__ import annotations

import json
import os
import stat
import zlib
from pathlib import Path

import pytest

from runtimes.engine.session import read_session, write_session
from runtimes.errors import ModelError, OutOfMemoryError

HEADER = {"model": "f" * 64, "runtime": "llamacpp", "library": "1.0", "kv_type": "f16"}
TOKENS = [1, 2, 300_000]
DATA = bytes(range(256)) * 40


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "chat.session"
    write_session(path, HEADER, TOKENS, DATA)
    return path


def test_a_session_comes_back(saved: Path):
    tokens, data = read_session(saved, HEADER)
    assert tokens == TOKENS
    assert data == DATA
    assert [p.name for p in saved.parent.iterdir()] == ["chat.session"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_its_owner_may_read_it(saved: Path):
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("model", "e" * 64, "another model file"),
        ("runtime", "onnx", "Load it with llamacpp"),
        ("kv_type", "q8_0", "Load it with kv_type f16"),
    ],
)
def test_a_session_of_something_else_is_refused(saved: Path, field: str, value: str, said: str):
    with pytest.raises(ModelError, match=said):
        read_session(saved, {**HEADER, field: value})


def test_every_truncation_is_refused(saved: Path):
    whole = saved.read_bytes()
    for size in [*range(0, 300, 7), len(whole) - 1]:
        saved.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="damaged"):
            read_session(saved, HEADER)


def test_every_flipped_bit_of_a_sample_is_refused(saved: Path):
    whole = saved.read_bytes()
    payload = whole.index(b"\n") + 1
    for at in [*range(payload, len(whole), 997), len(whole) - 1]:
        changed = bytearray(whole)
        changed[at] ^= 1
        saved.write_bytes(changed)
        with pytest.raises(ModelError, match="damaged"):
            read_session(saved, HEADER)


@pytest.mark.parametrize("tokens", ["abc", [1, "2"], [1, -2], [2**40], [True], {"a": 1}, None])
def test_tokens_that_are_none_are_refused(saved: Path, tokens: object):
    """Also with the right checksum."""
    line, _, data = saved.read_bytes().partition(b"\n")
    fields = {**json.loads(line), "tokens": tokens}
    if tokens is None:
        del fields["tokens"]
    del fields["crc32"]
    fields["crc32"] = zlib.crc32(data, zlib.crc32(json.dumps(fields).encode()))
    saved.write_bytes(json.dumps(fields).encode() + b"\n" + data)
    with pytest.raises(ModelError, match="it has no tokens"):
        read_session(saved, HEADER)


def test_a_failed_write_keeps_the_older_session(saved: Path):
    """Against a real limit: the kernel refuses to write past a file size."""
    resource = pytest.importorskip("resource")
    import signal

    before = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises((ModelError, OutOfMemoryError), match="cannot be written"):
            write_session(saved, HEADER, TOKENS, bytes(200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["chat.session"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"[" * 100_000 + b"\n", "is not a saved session"),
        (bytes(1000), "is not a saved session"),
        (b'{"ingot_session": 4}\n', "saved in session format 4, this Ingot reads 3"),
    ],
)
def test_what_is_no_session_is_refused(tmp_path: Path, content: bytes | None, said: str):
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(ModelError, match=said):
        read_session(tmp_path / "x", HEADER)
    with pytest.raises(ModelError, match="cannot be written"):
        write_session(tmp_path / "none" / "x", HEADER, TOKENS, DATA)
