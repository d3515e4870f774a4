"""The native build: its flags, its key, and the compiler fault that the flags are for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtimes.errors import IngotError
from runtimes.llamacpp import build, source
from runtimes.llamacpp.build import GCC_AMX_FLAG, find_compiler, plan_build
from runtimes.llamacpp.source import (
    KERNELS,
    KITS,
    OPS,
    PLAN,
    VULKAN,
    BuildError,
    flag,
    gpu_of,
    prepared,
    require_built,
)
from runtimes.machine.installed import find_installed

VERSION = source.TESTED_VERSION
PLAIN = {"PATH": os.environ["PATH"]}


def fake_compiler(folder: Path, banner: str) -> Path:
    """A compiler as far as ``--version`` goes, for the compilers that this machine lacks."""
    path = folder / "mycxx"
    path.write_text(f"#!/bin/sh\necho '{banner}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def gcc(tmp_path: Path) -> dict[str, str]:
    compiler = fake_compiler(tmp_path, "g++ 12.2.0\nFree Software Foundation, Inc.")
    return {**PLAIN, "CXX": str(compiler)}


def test_flags_are_added_for_gcc_to_what_the_user_asks(tmp_path: Path, gcc: dict[str, str]) -> None:
    asked = "-DGGML_CUDA=on -DLLAVA_BUILD=ON '-DCMAKE_CXX_FLAGS=-O2 -g'"
    plan = plan_build(VERSION, {**gcc, "CXXFLAGS": "-g1", "CMAKE_ARGS": asked})
    more = GCC_AMX_FLAG if os.uname().machine == "x86_64" else ""
    assert plan.cxx_flags == f"-g1 {more}".strip()
    flags = f"-O2 -g {more}".strip()
    assert plan.cmake_args == (
        f"-DLLAVA_BUILD=OFF -DGGML_CUDA=on -DLLAVA_BUILD=ON '-DCMAKE_CXX_FLAGS={flags}'"
    )
    clang = fake_compiler(tmp_path, "Debian clang version 16.0.6")
    assert plan_build(VERSION, {**PLAIN, "CXX": str(clang)}).cxx_flags == ""


def test_the_key_follows_what_goes_into_the_build(tmp_path: Path, gcc: dict[str, str]) -> None:
    environments = [gcc, {**gcc, "CMAKE_ARGS": "-DGGML_CUDA=on"}, {**gcc, "CXXFLAGS": "-O2"}]
    keys = [plan_build(VERSION, one).key for one in environments]
    keys.append(plan_build("0.3.35", gcc).key)
    fake_compiler(tmp_path, "Free Software Foundation 2")
    keys.append(plan_build(VERSION, gcc).key)
    assert len(set(keys)) == len(keys)
    assert plan_build(VERSION, gcc).key == keys[-1]


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no C\\+\\+ compiler found: install g\\+\\+") as raised:
        find_compiler({"PATH": str(tmp_path)})
    assert raised.value.exit_code == 3


def test_the_module_needs_nothing_installed() -> None:
    """`make` runs it in an empty virtual environment."""
    code = (
        "import sys; import runtimes.llamacpp.build; "
        "bad = [m for m in sys.modules.values() if 'site-packages' in str(m)]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_a_right_build_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that `make` has installed carries a stamp with its key."""
    key = build.installed_key()
    assert key is not None, "llama-cpp-python was not installed by `make`"
    plan = SimpleNamespace(key=key, version=VERSION)
    monkeypatch.setattr(build, "plan_build", lambda version, gpu: plan)
    monkeypatch.setattr(build, "_pip", lambda *_a, **_k: pytest.fail("pip was called"))
    build.install(VERSION, None, force=False)


def test_a_stamp_counts_for_its_own_libraries_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip leaves the stamp in place when it puts a plain build over ours."""
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libggml-cpu.so"
    library.write_bytes(b"ours")
    monkeypatch.setattr(build, "_package_dir", lambda: tmp_path)
    assert build.installed_key() is None
    build._write_stamp(plan_build(VERSION))
    assert build.installed_key() == plan_build(VERSION).key
    library.write_bytes(b"plain build")
    assert build.installed_key() is None
    (tmp_path / "ingot-build.json").write_text("{")
    assert build.installed_key() is None


def test_a_source_with_another_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(version: str, folder: Path) -> Path:
        path = folder / "any.tar.gz"
        path.write_bytes(b"something else")
        return path

    monkeypatch.setenv("INGOT_HOME", str(tmp_path))
    monkeypatch.setattr(source, "_download", download)
    with pytest.raises(BuildError, match="not the file that was tested"):
        source.sdist_path()
    assert not list((tmp_path / "cache" / "sdists").iterdir())
    # A version without a pinned checksum is taken as it comes, and kept.
    assert source.sdist_path("9.9.9").read_bytes() == b"something else"


def _gcc() -> str | None:
    try:
        compiler = find_compiler()
    except IngotError:
        return None
    return compiler.path if compiler.is_gcc and os.uname().machine == "x86_64" else None


def tile_configuration_stores(source_file: str, flag: str, folder: Path) -> set[int]:
    """Compile llama.cpp's own set-up of the AMX tiles; the offsets in it that are stored to.

    The configuration is 64 bytes: byte 0 the palette, from 16 on the row lengths, from 48 the rows.
    """
    struct = re.search(r"^struct tile_config_t\{.*?^\};", source_file, re.M | re.S)
    function = re.search(r"^inline void ggml_tile_config_init.*?^\}", source_file, re.M | re.S)
    assert struct
    assert function
    code = folder / "tiles.cpp"
    code.write_text(
        "#include <immintrin.h>\n#include <cstdint>\n"
        f"{struct[0]}\n{function[0]}\nvoid set_up() {{ ggml_tile_config_init(); }}\n"
    )
    output = folder / "tiles.s"
    options = ("-S", "-O3", "-DNDEBUG", "-fPIC", "-w", "-march=sapphirerapids", "-std=gnu++17")
    command = [_gcc() or "g++", *options, flag, str(code), "-o", str(output)]
    subprocess.run(command, check=True)
    (found,) = re.finditer(r"ldtilecfg\s+(-?\d*)\((%\w+)\)", output.read_text())
    base, register = int(found[1] or 0), re.escape(found[2])
    stores = re.findall(
        rf"\tv?mov\w*\s+[%$]\w+, (-?\d*)\({register}\)", output.read_text()[: found.start()]
    )
    return {int(offset or 0) - base for offset in stores}


GGML = "vendor/llama.cpp/ggml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source, as it is compiled for Vulkan."""
    return prepared(source.sdist_path(), "vulkan", tmp_path_factory.mktemp("source"))


@pytest.mark.skipif(_gcc() is None, reason="the fault is in GCC's code for x86-64")
def test_gcc_keeps_the_amx_tile_configuration(folder: Path, tmp_path: Path) -> None:
    code = (folder / GGML / "src/ggml-cpu/amx/mmq.cpp").read_text()
    assert {0, 16, 48} <= tile_configuration_stores(code, GCC_AMX_FLAG, tmp_path)


@pytest.mark.parametrize("gpu", KITS)
def test_a_kind_of_gpu_needs_its_kit(tmp_path: Path, gpu: str) -> None:
    kit = KITS[gpu]
    with pytest.raises(BuildError, match=f"{kit.program} is not on the path: install") as raised:
        plan_build(VERSION, {"PATH": str(tmp_path)}, gpu)
    assert raised.value.exit_code == 3
    for name in {kit.program, "g++", *kit.environment.values()}:
        fake_compiler(tmp_path, "Free Software Foundation").rename(tmp_path / name)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CMAKE_ARGS": "-DGGML_BLAS=ON"}
    plan = plan_build(VERSION, environment, gpu)
    assert {flag(gpu), "-DGGML_BLAS=ON"} <= set(plan.cmake_args.split())
    assert gpu_of(plan.cmake_args) == gpu
    assert plan.key != plan_build(VERSION, environment).key


def test_llama_cpp_knows_the_options(folder: Path) -> None:
    """CMake takes one that it does not know, and builds for the processor alone."""
    said = (folder / GGML / "CMakeLists.txt").read_text()
    options = set(re.findall(r"^option\((GGML_\w+)", said, re.MULTILINE))
    assert {flag(gpu).removeprefix("-D").removesuffix("=ON") for gpu in KITS} <= options


def test_a_wheel_without_what_was_asked_for_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "one.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("include/ggml-cuda.h", "include/ggml-vulkan.h", "lib/libggml-cuda.so"):
            archive.writestr(name, "")
    require_built("cuda", wheel)
    with pytest.raises(BuildError, match="without vulkan: CMake left -DGGML_VULKAN=ON out"):
        require_built("vulkan", wheel)


def test_a_kind_that_is_none() -> None:
    with pytest.raises(BuildError, match="must be one of cuda, hip, metal, sycl, vulkan or none"):
        plan_build(VERSION, PLAIN, "voodoo")
    assert plan_build(VERSION, PLAIN, "none") == plan_build(VERSION, PLAIN)


def test_the_changes_are_made_and_nothing_else(folder: Path) -> None:
    for kernel in KERNELS:
        for name, path in kernel.files.items():
            target = folder / Path(kernel.changes[0].file).with_name(name)
            assert target.read_bytes() == path.read_bytes()
    changes = [change for kernel in KERNELS for change in kernel.changes]
    texts = {one.file: (folder / one.file).read_text() for one in (*changes, *source._FOR_VULKAN)}
    for change in (*changes, *source._FOR_VULKAN):
        assert texts[change.file].count(change.now) == 1
        texts[change.file] = texts[change.file].replace(change.now, change.was)
    # Without the extension no word of it is left.
    vulkan = (folder / VULKAN).read_text()
    without = re.sub(r"#ifdef VK_EXT_layer_settings\n.*?#else\n", "", vulkan, flags=re.S)
    assert "layer_setting_info" not in without
    assert vulkan.count("#ifdef VK_EXT_layer_settings") == 1


def test_a_version_without_a_kernels_place_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = tmp_path / "llama_cpp_python-9.9.9"
    (inner / OPS).parent.mkdir(parents=True)
    for name in (OPS, PLAN):
        (inner / name).write_text("int other;\n")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        archive.add(inner, inner.name)
    folder = prepared(tmp_path / "other.tar.gz", "", tmp_path / "to")
    assert (folder / OPS).read_text() == (folder / PLAN).read_text() == "int other;\n"
    assert not list(folder.rglob("ingot-*.h"))
    assert all(f"kernel {kernel.name} does not fit it" in caplog.text for kernel in KERNELS)


def test_the_installed_library_has_our_attention() -> None:
    installed = find_installed("llamacpp")
    assert installed
    libraries = (installed.package / "lib").glob("*ggml-cpu*")
    assert any(b"ingot_attention_work_size" in one.read_bytes() for one in libraries)
