"""The command as users run it."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from quantize.manifest import load_manifest
from quantize.report.write import FILES
from tests.quantize.entries import hash_files

from .conftest import Built, kill_during, run_quantize


def test_help_loads_no_torch():
    assert "--allow-token-mismatch" in run_quantize("--help").stdout
    code = (
        "import sys, quantize.cli, quantize.resolve, quantize.build.pipeline; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "transformers", "onnx", "onnxruntime", "llama_cpp"}


# Others are in tests/golden, and where they are raised.
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--recipe onnx-fp16", "is for GPUs: --target cuda or webgpu"),
        ("--imatrix no.txt", "no.txt cannot be read"),
        ("--recipe q8_0,onnx-int8 --gptq", "--gptq makes up for the errors of few bits"),
        ("--revision main", "a model on the hub"),
        ("--bits four", "--bits takes numbers"),
        ("--out {source}", "choose another"),
    ],
)
def test_usage_errors(sources: dict[str, Path], arguments: str, says: str):
    source = str(sources["qwen2"])
    done = run_quantize(source, *arguments.format(source=source).split(), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_weights_that_do_not_fit_the_configuration(sources: dict[str, Path], tmp_path: Path):
    """The converter's own words come through, and nothing is left."""
    model = Path(shutil.copytree(sources["qwen2"], tmp_path / "odd"))
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = ["NoSuchModelForCausalLM"]
    (model / "config.json").write_text(json.dumps(config))
    done = run_quantize(model, "--recipe", "q8_0", check=False)
    assert done.returncode == 3
    assert "NoSuchModelForCausalLM is not supported" in done.stderr
    assert list(tmp_path.iterdir()) == [model]


def test_too_large_for_the_disk(sources: dict[str, Path], tmp_path: Path):
    """A sparse file of weights, far larger than what is free."""
    model = Path(shutil.copytree(sources["qwen2"], tmp_path / "huge"))
    size = 4_000_000_000_000
    tensor = {"dtype": "F16", "shape": [size // 2], "data_offsets": [0, size]}
    header = json.dumps({"w": tensor}).encode()
    try:
        with (model / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
    except OSError:
        pytest.skip("this file system takes no sparse file of 4 TB")
    if shutil.disk_usage(tmp_path).free > size:
        pytest.skip("this disk is larger than the test")
    done = run_quantize(model, "--recipe", "q8_0", check=False)
    assert done.returncode == 4
    assert "GB free" in done.stderr
    assert list(tmp_path.iterdir()) == [model]


def test_an_interrupted_run_leaves_nothing(sources: dict[str, Path], tmp_path: Path):
    out = tmp_path / "out"
    command = (sources["llama"], "--recipe", "q8_0", "--out", out, "--no-measure")
    code, said = kill_during("reading", signal.SIGINT, *command)
    assert code == 130
    assert not out.exists()
    assert "Traceback" not in said
    assert "resumes from what is finished" in said


def test_json_events_tell_of_each_file_and_the_manifest_lists_it(measured_llama: Built):
    names = {path.name for path in measured_llama.out.iterdir()}
    assert names == {"llama-q8_0.gguf", "onnx-int8", "manifest.json", *FILES}  # and nothing else
    manifest = load_manifest(measured_llama.out)
    events = [json.loads(line) for line in measured_llama.stdout.splitlines()]
    assert events[0]["event"] == "start"
    assert events[-1]["manifest"] == str(measured_llama.out / "manifest.json")
    built = [event["entry"]["recipe"] for event in events if event["event"] == "file"]
    assert built == [entry.recipe for entry in manifest.files] == ["q8_0", "onnx-int8"]
    assert manifest.model.architecture == "LlamaForCausalLM"
    for entry in manifest.files:
        path = measured_llama.out / entry.path
        assert hash_files(path) == entry.sha256
        files = path.rglob("*") if path.is_dir() else [path]
        assert entry.bytes == sum(file.stat().st_size for file in files)
        assert entry.tools["torch"]


def test_graded_questions_and_speed_are_measured(measured_llama: Built):
    """The answers in the graded set are the float model's own."""
    manifest = load_manifest(measured_llama.out)
    assert manifest.model.quality.task_accuracy == 1.0
    assert manifest.model.quality.tasks == {"even": 1.0, "odd": 1.0}
    for entry in manifest.files:
        assert entry.quality.questions == 8
        assert entry.quality.task_accuracy >= 0.25
        assert 0 <= entry.fidelity.kl_mean < 0.1
        figures = (entry.speed.prefill_tps, entry.speed.decode_tps_1, entry.speed.decode_tps_16)
        assert min(figures) > 0


def test_an_output_folder_of_another_model(measured_llama: Built, sources: dict[str, Path]):
    done = run_quantize(
        sources["qwen2"], "--out", measured_llama.out, "--recipe", "q8_0", check=False
    )
    assert done.returncode == 2
    assert "builds of llama" in done.stderr
    assert (measured_llama.out / "llama-q8_0.gguf").exists()


def test_the_table_is_on_stdout_and_progress_on_stderr(qwen2: Built):
    for name in ("qwen2-q8_0.gguf", "onnx-int8", "383/383"):
        assert name in qwen2.stdout
    assert "\x1b" not in qwen2.stdout + qwen2.stderr
    assert "building onnx-int8" in qwen2.stderr
    assert "building onnx-int8" not in qwen2.stdout
