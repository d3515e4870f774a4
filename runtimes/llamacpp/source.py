"""The source distribution of llama-cpp-python: fetched, changed, and built from; and mined for
llama.cpp's converter.

Standard library only: the native build uses it before anything is installed.

On a processor, llama.cpp's flash attention takes passes of fewer than 64 tokens one query row at a
time, and so decodes half as fast behind 2,000 tokens as without it (its #27086; of what upstream
has, #19012 is for longer passes, #19209 splits the positions among threads, and #27478, open,
gives 10 to 15%). ``attention.h`` beside this file replaces it for passes of any length.

Its products of many rows with weights in Q8_0, Q4_0, IQ4_NL, MXFP4 and Q4_K do half of what
AVX512-VNNI can, and some two thirds of what AVX2 can; those in Q5_0, Q5_1 and Q4_1, and those of a
mixture's experts, whose rows llama.cpp takes one by one, a third or less. Other K-quants are tiled
(ggml-cpu/tiled), which few rows gain nothing from. ``products.h`` replaces these on such
processors, and those of few rows in Q5_K and Q6_K.

LoRA adapters are added to all rows of a pass; with ``adapters.h`` each row can have its own.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.paths import cache_dir

log = logging.getLogger(__name__)

TESTED_VERSION = "0.3.36"
_SHA256 = {
    "0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
}
_LONGEST_DOWNLOAD_S = 1800


class BuildError(IngotError):
    """llama-cpp-python cannot be downloaded, compiled or installed, or is not what was tested."""

    exit_code = 3


def sdist_path(version: str = TESTED_VERSION) -> Path:
    """The source distribution in Ingot's cache, downloaded by pip when it is not there."""
    folder = cache_dir() / "sdists"
    target = folder / f"llama_cpp_python-{version}.tar.gz"
    if target.is_file() and _is_tested(target, version):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as work:
        found = _download(version, Path(work))
        if not _is_tested(found, version):
            raise BuildError(
                f"llama-cpp-python {version} was downloaded, but is not the file that was tested "
                f"(sha256 {sdist_sha256(found)}, expected {_SHA256[version]})"
            )
        os.replace(found, target)  # atomic: a reader sees the whole file or none
    return target


def _download(version: str, folder: Path) -> Path:
    log.info("downloading the source of llama-cpp-python %s", version)
    options = "--quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest"
    command = [
        "-m",
        "pip",
        "download",
        *options.split(),
        str(folder),
        f"llama-cpp-python=={version}",
    ]
    # pip unpacks the source to read its metadata: in our folder, which is removed after.
    environment = {"TMPDIR": str(folder)}
    try:
        done = processes.run(
            *command, environment=environment, capture_output=True, timeout=_LONGEST_DOWNLOAD_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"downloading llama-cpp-python {version} took too long") from error
    found = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    if done.returncode != 0 or len(found) != 1:
        reason = "\n".join(done.stderr.strip().splitlines()[-5:]) or "no .tar.gz came"
        raise BuildError(f"cannot download llama-cpp-python {version}:\n{reason}")
    return found[0]


def _is_tested(path: Path, version: str) -> bool:
    """True when the file has the pinned checksum; versions without one are taken as they come."""
    return _SHA256.get(version) in (None, sdist_sha256(path))


def sdist_sha256(path: Path) -> str:
    """Checksum of the 76 MB at ``path``, computed once a process unless the file changes."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@cache
def _sha256(path: Path, _size: int, _changed_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# What llama.cpp is built with for each kind of GPU

NONE = "none"


@dataclass(frozen=True, slots=True)
class Kit:
    """One kind of GPU."""

    program: str  # that the build calls: without it there is no kit
    install: str  # what has it
    environment: Mapping[str, str] = field(default_factory=dict)


KITS = {
    "cuda": Kit(
        "nvcc",
        "NVIDIA's CUDA toolkit (Debian and Ubuntu: apt install nvidia-cuda-toolkit), and put its"
        " bin folder on the path",
    ),
    "hip": Kit(
        "hipconfig",
        "AMD's ROCm with its HIP development files, and put its bin folder on the path",
    ),
    "metal": Kit("xcrun", "Xcode's tools (xcode-select --install)"),
    "sycl": Kit(
        "icpx",
        "Intel's oneAPI base toolkit, and run its setvars.sh in this shell",
        {"CC": "icx", "CXX": "icpx"},
    ),
    "vulkan": Kit(
        "glslc",
        "the Vulkan SDK (Debian and Ubuntu: apt install libvulkan-dev glslc spirv-headers, and"
        " mesa-vulkan-drivers or the vendor's driver)",
    ),
}


def flag(gpu: str) -> str:
    """CMake's option for a kind of GPU; llama.cpp's docs/build.md lists them."""
    return f"-DGGML_{gpu.upper()}=ON"


def require_built(gpu: str, wheel: Path) -> None:
    """Raise BuildError for a wheel without the library of this kind: CMake takes options that it
    does not know, and says nothing."""
    names = (Path(name).name for name in zipfile.ZipFile(wheel).namelist())
    ours = (f"libggml-{gpu}.", f"ggml-{gpu}.")  # every wheel has the headers of all kinds
    if not any(name.startswith(ours) and not name.endswith(".h") for name in names):
        raise BuildError(f"llama.cpp was built without {gpu}: CMake left {flag(gpu)} out")


def require_kit(gpu: str, environment: Mapping[str, str]) -> None:
    """Raise BuildError for a name that is none, and for a kit that is not installed."""
    kit = KITS.get(gpu)
    if kit is None:
        raise BuildError(f"--gpu must be one of {', '.join(KITS)} or {NONE}, not {gpu!r}")
    if shutil.which(kit.program, path=environment.get("PATH")) is None:
        raise BuildError(f"{kit.program} is not on the path: install {kit.install}")


def gpu_of(cmake_args: str) -> str:
    """The kind that a build was made for by ``--gpu``; empty for another one."""
    return next((name for name in KITS if flag(name) in cmake_args.split()), "")


def compilers(gpu: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that the build needs beside CMake's flag; the user's own choice
    stays."""
    found = dict(KITS[gpu].environment)
    if gpu == "hip":
        program = shutil.which("hipconfig", path=environment.get("PATH")) or "hipconfig"
        folder = subprocess.run(
            [program, "-l"], capture_output=True, text=True, check=False
        ).stdout.strip()
        found["HIPCXX"] = f"{folder}/clang" if folder else "clang"
    return {name: value for name, value in found.items() if name not in environment}


_GGML = "vendor/llama.cpp/ggml/src"
OPS, PLAN = f"{_GGML}/ggml-cpu/ops.cpp", f"{_GGML}/ggml-cpu/ggml-cpu.c"
SGEMM, REPACK = f"{_GGML}/ggml-cpu/llamafile/sgemm.cpp", f"{_GGML}/ggml-cpu/repack.cpp"
TILED = f"{_GGML}/ggml-cpu/tiled/tiled.cpp"
VULKAN = f"{_GGML}/ggml-vulkan/ggml-vulkan.cpp"
ADAPTER, GRAPH = (f"vendor/llama.cpp/src/llama-{name}" for name in ("adapter.h", "graph.cpp"))

_KERNEL = """static void ggml_compute_forward_flash_attn_ext_f16(
        const ggml_compute_params * params,
        ggml_tensor * dst) {
"""
_OURS = f"""#include "ingot-attention.h"

{_KERNEL}
    if (ingot_attention(params, dst)) {{
        return;
    }}
"""
_PLANNER = "struct ggml_cplan ggml_graph_plan("
_SIZE_OF = "size_t ingot_attention_work_size(const struct ggml_tensor * dst, int n_tasks);\n\n"
_SIZE = "cur += MAX(prefill, decode);"
_LARGER = "cur += MAX(MAX(prefill, decode), ingot_attention_work_size(node, n_tasks));"

_MATRIX = "bool llamafile_sgemm(const struct ggml_compute_params * params, int64_t m, int64_t n,"
_ONE_ROW = "    // only enable sgemm for prompt processing\n"
_PLAIN = """#ifdef INGOT_PRODUCTS
    if (Ctype == GGML_TYPE_F32 &&
        ingot::plain_products(params, m, n, k, A, lda, B, ldb, C, ldc, Atype, Btype, n)) {
        return true;
    }
#endif
"""
_REPACK_H = '#include "repack.h"\n'
_SPACE = "        assert(params->wsize >= nbw2 * ne12);\n"


def _repacked(function: str, given: str, then: str) -> str:
    """Calls of a function of ours for each kind of repacked weights that it takes."""
    kinds = {"q4_0": "Fours", "q4_K": "FoursOfK", "iq4_nl": "UnevenFours", "mxfp4": "FloatingFours"}
    calls = [
        f"""        if constexpr (INTER_SIZE == 8 && NB_COLS == 8 &&
                      std::is_same_v<BLOC_TYPE, block_{kind}>) {{
            if (ingot::{function}<ingot::{weights}, block_{kind}x8>(params, op{given})) {{
                {then};
            }}
        }}
"""
        for kind, weights in kinds.items()
    ]
    return "".join(("#ifdef INGOT_PRODUCTS\n", *calls, "#endif\n"))


_PICKED = ", cur_a, cne1, (const int32_t *) &MMID_MATRIX_ROW(cur_a, 0)"
_TO_QUANTIZE = (
    "            for (int64_t i11 = ith; i11 < ne11; i11 += nth) {\n                from_float("
)
_SHARED_OUT = _TO_QUANTIZE.replace("= ith;", "= (ith + i12) % nth;")
_EXPERT = "            const auto * src0_cur = (const char *) src0->data + cur_a*nb02;\n"
_UNUSED = "#define UNUSED GGML_UNUSED\n"
_TOO_FEW = "    if (!ggml_tiled_min_batch(dst->src[1]->ne[1])) {\n"
_BY_COLUMNS = """#if defined(INGOT_PRODUCTS) && defined(GGML_USE_LLAMAFILE)
    if (ingot::by_columns(dst->src[0]->type, dst->src[1]->ne[1])) {
        return false;
    }
#endif
"""
_TILES = """    if (!ggml_tiled_supported(dst->src[0], dst->src[1])) {
        return false;
    }
    // profitability is per expert"""
_PLAIN_OF = """#ifdef INGOT_PRODUCTS
    if (ingot::plain_products_of(params, dst, cur_a, cne1, expert_rows)) {
        return true;
    }
#endif
"""

_FIELD = "    explicit llama_adapter_lora(llama_model * model) : model(model) {}\n"
_USED = """    // which one of a stack of adapters a sequence's rows use; empty for what is no stack
    std::vector<int32_t> ingot_adapters;

"""
_GRAPH_H = '#include "llama-graph.h"\n'
_ADAPTER_USED = """        const float adapter_scale = lora.second;
        const float scale = lw->get_scale(lora.first->alpha, adapter_scale);

        ggml_tensor * ab_cur = ggml_mul_mat(
"""
_BY_ROWS = """#ifdef INGOT_ADAPTERS
        if (!lora.first->ingot_adapters.empty()) {
            auto & rows = ingot::AdaptersOfRows::of(this->res, lora.first, n_tokens, n_outputs);
            res = ingot::with_adapters_of_rows(ctx0, rows, *lw, res, cur);
            continue;
        }
#endif
"""

_SETTINGS = "    std::vector<vk::LayerSettingEXT> settings = {"
_CREATE = (
    "    vk::InstanceCreateInfo instance_create_info"
    "(vk::InstanceCreateFlags{}, &app_info, layers, extensions"
)
_WITH, _WITHOUT = f"{_CREATE}, &layer_setting_info);\n", f"{_CREATE});\n"


@dataclass(frozen=True, slots=True)
class Change:
    """``was`` stands once in a file of the source."""

    file: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A file of ours beside this one, what includes and calls it, and ``parts`` that it includes
    itself; all or nothing. They come to lie beside the first of them.

    ``layouts``: it reads what llama.cpp keeps in layouts of its own, which another version than the
    tested one may change without a trace.
    """

    name: str
    changes: tuple[Change, ...]
    layouts: bool = False
    parts: tuple[str, ...] = ()

    @property
    def files(self) -> dict[str, Path]:
        """The files, by their names in llama.cpp."""
        names = (self.name, *self.parts)
        return {f"ingot-{name}.h": Path(__file__).with_name(f"{name}.h") for name in names}


KERNELS = (
    Kernel(
        "attention",
        (
            Change(OPS, _KERNEL, _OURS),
            Change(PLAN, _PLANNER, _SIZE_OF + _PLANNER),
            Change(PLAN, _SIZE, _LARGER),
        ),
    ),
    Kernel(
        "products",
        (
            Change(REPACK, _REPACK_H, f'{_REPACK_H}#include "ingot-products.h"\n'),
            Change(REPACK, _SPACE, _SPACE + _repacked("repacked_products", "", "return")),
            Change(SGEMM, _MATRIX, f'#include "../ingot-products.h"\n\n{_MATRIX}'),
            Change(SGEMM, _ONE_ROW, _PLAIN + _ONE_ROW),
            Change(TILED, _UNUSED, f'#include "../ingot-products.h"\n\n{_UNUSED}'),
            Change(TILED, _TOO_FEW, _BY_COLUMNS + _TOO_FEW),
            Change(REPACK, _TO_QUANTIZE, _SHARED_OUT),
            Change(
                REPACK, _EXPERT, _repacked("repacked_products_of", _PICKED, "continue") + _EXPERT
            ),
            Change(TILED, _TILES, _PLAIN_OF + _TILES),
        ),
        layouts=True,
        parts=("rows", "weights", "columns", "strips_avx512", "strips_avx2"),
    ),
    Kernel(
        "adapters",
        (
            Change(GRAPH, _GRAPH_H, f'{_GRAPH_H}#include "ingot-adapters.h"\n'),
            Change(GRAPH, _ADAPTER_USED, _BY_ROWS + _ADAPTER_USED),
            Change(ADAPTER, _FIELD, _USED + _FIELD),
        ),
        layouts=True,
    ),
)
# Vulkan's headers know VK_EXT_layer_settings from 1.3.272 on, and Debian 12 has 1.3.239. ggml uses
# it for its own debugging only, so that it can be left out where it is not known.
_FOR_VULKAN = (
    Change(VULKAN, _SETTINGS, f"#ifdef VK_EXT_layer_settings\n{_SETTINGS}"),
    Change(VULKAN, _WITH, f"{_WITH}#else\n{_WITHOUT}#endif\n"),
)


def fingerprint() -> str:
    """A short hash of all changes: what a compiled library has to be compiled again for."""
    said = [path.read_bytes() for kernel in KERNELS for path in kernel.files.values()]
    said.append(repr((KERNELS, _FOR_VULKAN)).encode())
    return hashlib.sha256(b"\0".join(said)).hexdigest()[:16]


def prepared(source: Path, gpu: str, folder: Path) -> Path:
    """The source distribution ``source``, unpacked in ``folder`` and changed.

    Another version than the one that was tested may lack a place: what needs it is left out, and
    said.
    """
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (one for one in folder.iterdir() if one.is_dir())
    tested = source.name.endswith(f"-{TESTED_VERSION}.tar.gz")
    for kernel in KERNELS:
        if (tested or not kernel.layouts) and _apply(unpacked, kernel.changes):
            beside = (unpacked / kernel.changes[0].file).parent
            for name, path in kernel.files.items():
                (beside / name).write_bytes(path.read_bytes())
        else:
            log.warning("%s: kernel %s does not fit it, and is left out", source.name, kernel.name)
    if gpu == "vulkan":
        _apply(unpacked, _FOR_VULKAN)
    return unpacked


def _apply(folder: Path, changes: tuple[Change, ...]) -> bool:
    """Whether all could be made; else none is."""
    texts: dict[Path, str] = {}
    for change in changes:
        path = folder / change.file
        text = texts.get(path) or (path.read_text(encoding="utf-8") if path.is_file() else "")
        if text.count(change.was) != 1:
            return False
        texts[path] = text.replace(change.was, change.now)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return True
