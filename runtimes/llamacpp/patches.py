"""Changes to llama.cpp's source before it is compiled. Standard library only, as ``build``.

On a processor, llama.cpp's flash attention takes passes of fewer than 64 tokens one query row at a
time, and so decodes half as fast behind 2,000 tokens as without it (its #27086; of what upstream
has, #19012 is for longer passes, #19209 splits the positions among threads, and #27478, open,
gives 10 to 15%). ``attention.h`` beside this file replaces it for passes of any length.
"""

import hashlib
import logging
import tarfile
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_GGML = "vendor/llama.cpp/ggml/src"
ATTENTION = Path(__file__).with_name("attention.h")
OPS, PLAN = f"{_GGML}/ggml-cpu/ops.cpp", f"{_GGML}/ggml-cpu/ggml-cpu.c"
VULKAN = f"{_GGML}/ggml-vulkan/ggml-vulkan.cpp"

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


_FOR_ATTENTION = (
    Change(OPS, _KERNEL, _OURS),
    Change(PLAN, _PLANNER, _SIZE_OF + _PLANNER),
    Change(PLAN, _SIZE, _LARGER),
)
# Vulkan's headers know VK_EXT_layer_settings from 1.3.272 on, and Debian 12 has 1.3.239. ggml uses
# it for its own debugging only, so that it can be left out where it is not known.
_FOR_VULKAN = (
    Change(VULKAN, _SETTINGS, f"#ifdef VK_EXT_layer_settings\n{_SETTINGS}"),
    Change(VULKAN, _WITH, f"{_WITH}#else\n{_WITHOUT}#endif\n"),
)


def fingerprint() -> str:
    """A short hash of all changes: what a compiled library has to be compiled again for."""
    said = [ATTENTION.read_bytes(), repr(_FOR_ATTENTION + _FOR_VULKAN).encode()]
    return hashlib.sha256(b"\0".join(said)).hexdigest()[:16]


def prepared(source: Path, gpu: str, folder: Path) -> Path:
    """The source distribution ``source``, unpacked in ``folder`` and changed.

    Another version than the one that was tested may lack a place: what needs it is left out, and
    said.
    """
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (one for one in folder.iterdir() if one.is_dir())
    if _apply(unpacked, _FOR_ATTENTION):
        target = unpacked / Path(OPS).with_name("ingot-attention.h")
        target.write_bytes(ATTENTION.read_bytes())
    else:
        log.warning("%s: its attention is another one, and stays as it is", source.name)
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
