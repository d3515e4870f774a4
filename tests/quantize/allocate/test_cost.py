"""What measuring a table takes is told by the shapes alone."""

import json
import struct
from pathlib import Path

from quantize.build.preflight import memory_parts
from quantize.options import Options, SourceOptions
from quantize.recipes import find_recipe
from quantize.source import open_source
from tests.quantize.shapes import SHAPES, make_random_model

VOCAB, HIDDEN = 128256, 4096


def test_a_model_of_8_billion_weights_takes_less_than_20_gib(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = make_random_model(tmp_path / "large", SHAPES["llama"])
    sizes = {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": VOCAB}
    config = LlamaConfig(hidden_size=HIDDEN, **sizes)
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    end, header = 0, {}
    for name, weight in network.named_parameters():
        begin, end = end, end + weight.numel() * 2
        header[name] = {"dtype": "BF16", "shape": [*weight.shape], "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with (model / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)  # a hole: nothing is read
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(model)
    source = open_source(str(model))
    assert 8.0e9 < source.parameters < 8.1e9
    recipes = (find_recipe("kl0.02"),)
    parts = memory_parts(source, recipes, Options(SourceOptions(str(model)), recipes))
    needed = parts["measuring how much each tensor matters"]
    # The weights, the output in single precision with its squared gradients, and no third copy.
    assert source.bytes + 2 * 4 * VOCAB * HIDDEN < needed < 20 * 2**30
