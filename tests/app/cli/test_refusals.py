"""Commands that are refused: with which exit code, and what is said."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import write_adapter
from tests.support import write_rows

REFUSED = (
    ("nope", 2, "nope"),
    ("--nope", 2, "--nope"),
    ("run", 2, "MODEL"),
    ("run {gguf}", 2, "there is no prompt"),
    ("run {gguf} x --bogus", 2, "--bogus"),
    ("run {gguf} x --threads 100000", 2, "--threads"),
    ("run {gguf} x --max-tokens many", 2, "--max-tokens"),
    ("run {gguf} x --max-tokens 0", 2, "max_tokens must be at least 1"),
    ("run {gguf} x --temperature nan", 2, "temperature"),
    ("run {gguf} x --raw --system y", 2, "--system"),
    ("run {gguf} x --raw --thinking off", 2, "--raw leaves out"),
    ("run {gguf} x --thinking much", 2, "thinking"),
    ("run {gguf} x --think-tokens -1", 2, "think-tokens"),
    ("run {gguf} x --recipe q8_0", 2, "--recipe"),
    ("run {built} x --recipe onnx-int8 --context-shift", 2, "ONNX"),
    ("run {built} x --recipe q9_9", 3, "q8_0"),
    ("run {gguf} x --adapter a={a0} --adapter b={a1}", 2, "give one"),
    ("run missing.gguf x", 3, "missing.gguf"),
    ("run {cut} x", 3, "truncated"),
    ("run {text} x", 3, "gguf"),
    ("run {gguf} '{long}'", 2, "the model has no longer one"),
    ("run {gguf} '{some}' --context 128", 2, "--context gives a longer one"),
    ("embed {built} a --input x.txt", 2, "give texts or --input, not both"),
    ("embed {built} a ' '", 2, "text 2 is blank"),
    ("embed {built} --input x.txt", 2, "x.txt: no such file"),
    ("embed {built} a -o nowhere/x.npy", 2, "no such folder"),
    ("embed {built} a -o /dev", 2, "it is a folder; name a file"),
    ("embed {built} --input {text} -o {text}", 2, "would overwrite the input"),
    ("embed {built} a --recipe onnx-int8", 2, "ONNX graphs and rerankers give none"),
    ("embed {built} a --recipe q3", 3, "q3"),
    ("plan nothing", 3, "nothing"),
    ("plan {built} --workload dance", 2, "--workload"),
    ("plan {built} --recipe a --file b", 2, "both pick a file"),
    ("measure {gguf}", 2, "--against ORIGINAL"),
    ("measure {gguf} --against {gguf}", 2, "quantized already"),
    ("measure {gguf} --against /nowhere", 2, "there is no folder"),
    ("measure /nowhere.gguf --against {floats}", 3, "no such file"),
    ("measure {cut} --against {floats}", 3, "cut"),
    ("doctor extra", 2, "--checksums"),
    ("doctor --checksums nothing", 3, "not in the library"),
    ("doctor --checksums .", 3, "no manifest.json"),
    ("doctor --checksums a b", 2, "takes one MODEL"),
    ("doctor --verify --checksums", 2, "give one of"),
    ("doctor --verify --out {text}/below", 2, "cannot be written to"),
    ("{batch} --adapter no.gguf", 2, "there is no file no.gguf"),
    ("{batch} --adapter {gguf}", 3, "no LoRA adapter"),
    ("{batch} --adapter README.md", 3, "README.md: not a GGUF file"),
    ("{batch} --adapter a:b={a0}", 2, "cannot be called 'a:b'"),
    ("{batch} --adapter a={a0} --adapter a={a1}", 2, "two are called 'a'"),
    ("{batch} --adapter {a0} --reproducible", 2, "merge it instead"),
    ("{batch} --adapter {a0} --task embed", 2, "--task embed has no adapters"),
    ("{batch} {nine}", 2, "8 adapters are loaded"),
)


@pytest.fixture(scope="module")
def places(
    pebble: Path,
    pebble_built: Path,
    gguf_file: Path,
    float_gguf: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path | str]:
    folder = tmp_path_factory.mktemp("refused")
    text, cut = folder / "notes.gguf", folder / "cut.gguf"
    text.write_text("These are notes.\n")
    cut.write_bytes(gguf_file.read_bytes()[: gguf_file.stat().st_size // 2])
    a0, a1 = (write_adapter(pebble, folder / f"a{seed}.gguf", seed) for seed in (0, 1))
    rows = write_rows(folder / "in.jsonl", [{"prompt": "x"}])
    return {
        "gguf": gguf_file,
        "floats": float_gguf,
        "built": pebble_built,
        "cut": cut,
        "text": text,
        "a0": a0,
        "a1": a1,
        "batch": f"batch {rows} - -m {pebble_built} --recipe q8_0",
        "nine": " ".join(f"--adapter n{number}={a0}" for number in range(9)),
        "long": "word " * 3000,
        "some": "word " * 300,
    }


@pytest.mark.parametrize(("line", "code", "said"), REFUSED)
def test_what_is_refused(command: Any, places: Any, line: str, code: int, said: str) -> None:
    done = command(*shlex.split(line.format_map(places)))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
