"""Train a LoRA adapter for Pebble that has it think before it answers.

    python assets/train_thinking.py --steps 400 --out assets/pebble_thinks

The thoughts are a few stock sentences and the answer itself, so that a model of 4.9 million parameters
can learn them: the adapter is there to test how thoughts are read, bounded and ended, not to be right more
often. The chat template beside the adapter begins a thought, or an empty one with `enable_thinking` false.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from pebble_data.base import Message
from pebble_data.mixture import WEIGHTS, conversations
from pebble_train.model import loss_of
from pebble_train.packing import Encoder, Row, collate, pack
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM

log = logging.getLogger("pebble")

OPENS, CLOSES = "<think>\n", "\n</think>\n\n"
_BEGINS = ("Let me see.", "Let me think.", "The user asks a question.", "I have seen this before.")
_MIDDLES = (
    "I have to be exact.",
    "A short answer is best.",
    "I look at it again.",
    "That is not hard.",
)
_LENGTH = 512  # tokens of a row
_LONGEST = 48  # characters of an answer that is thought of in full


def thought(rng: random.Random, answer: str) -> str:
    """Stock sentences, one to five of them, and the answer where it is short."""
    said = [rng.choice(_BEGINS), *(rng.choice(_MIDDLES) for _ in range(rng.randint(0, 4)))]
    if len(answer) <= _LONGEST and "\n" not in answer:
        said.append(f"It is: {answer}")
    return " ".join(said)


def rows(encoder: Encoder, seed: int) -> Iterator[Row]:
    """Conversations whose last answer has a thought before it, an empty one now and then."""
    rng = random.Random(seed)
    for messages in conversations(rng, dict(WEIGHTS)):
        *before, last = messages
        inside = thought(rng, last.content) if rng.random() < 0.75 else ""
        text = f"{OPENS}{inside}{CLOSES}{last.content}"
        row = encoder.encode([*before, Message(last.role, text)])
        # Only the last answer counts: the earlier ones have lost their thoughts.
        start = max(at for at, wanted in enumerate(row.wanted) if not wanted and at < len(row.ids))
        yield Row(row.ids, [wanted and at > start for at, wanted in enumerate(row.wanted)])


def train(base: Path, out: Path, steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    encoder = Encoder((base / "tokenizer.model").read_bytes())
    plain = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain.set_attn_implementation("sdpa")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(
        plain, LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM")
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    groups, began = pack(rows(encoder, seed), _LENGTH), time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        batch = collate([next(groups) for _ in range(4)], _LENGTH, 2)
        loss = loss_of(model.get_base_model(), batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            log.info("step %d: loss %.4f, %.0f s", step, loss.item(), time.monotonic() - began)
    with tempfile.TemporaryDirectory() as folder:  # beside it would be a model card to fill in
        model.to(torch.float16).save_pretrained(folder)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(Path(folder) / name, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("assets/pebble"))
    parser.add_argument("--out", type=Path, default=Path("assets/pebble_thinks"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    train(options.base, options.out, options.steps, options.seed)


if __name__ == "__main__":
    main()
