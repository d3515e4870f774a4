"""What measuring a table takes is told by the shapes alone."""

import json
import struct
from pathlib import Path

from quantize.build.preflight import memory_parts
from quantize.options import Options, SourceOptions
from quantize.recipes import find_recipe
from quantize.source import open_source
from tests.quantize.shapes import SHAPES, make_random_model

LAYERS, HIDDEN, INNER, KEYS, VOCAB = 32, 4096, 14336, 1024, 128256


def test_a_model_of_8_billion_weights_takes_less_than_20_gib(tmp_path: Path) -> None:
    model = make_random_model(tmp_path / "large", SHAPES["llama"])
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN)}
    for n in range(LAYERS):
        for name, shape in {
            **dict.fromkeys(("self_attn.q_proj", "self_attn.o_proj"), (HIDDEN, HIDDEN)),
            **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (KEYS, HIDDEN)),
            **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (INNER, HIDDEN)),
            "mlp.down_proj": (HIDDEN, INNER),
        }.items():
            shapes[f"model.layers.{n}.{name}"] = shape
    end, header = 0, {}
    for name, (rows, width) in shapes.items():
        begin, end = end, end + rows * width * 2
        header[f"{name}.weight"] = {
            "dtype": "BF16",
            "shape": [rows, width],
            "data_offsets": [begin, end],
        }
    head = json.dumps(header).encode()
    with (model / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)  # a hole: nothing is read
    config = json.loads((model / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
    }
    (model / "config.json").write_text(json.dumps(config))
    source = open_source(str(model))
    assert 8.0e9 < source.parameters < 8.1e9
    recipes = (find_recipe("kl0.02"),)
    parts = memory_parts(source, recipes, Options(SourceOptions(str(model)), recipes))
    needed = parts["measuring how much each tensor matters"]
    # The weights, the output in single precision with its squared gradients, and no third copy.
    assert source.bytes + 2 * 4 * VOCAB * HIDDEN < needed < 20 * 2**30
