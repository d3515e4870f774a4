"""Train Pebble, the embedded default model, from nothing on text that `pebble_data` generates.

    python assets/train_pebble.py --minutes 90 --work ~/.cache/pebble --out assets/pebble

The length of the run is a time, not a number of steps: the learning rate follows the clock, so the run
always ends with its learning rate at zero, whatever else the machine is doing. A run that was stopped
goes on from its last checkpoint in `--work`.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from pebble_data.base import Split
from pebble_data.mixture import held_out
from pebble_train.hardware import autocast_dtype, pick_device
from pebble_train.model import build, loss_of, save_model
from pebble_train.optim import Muon
from pebble_train.packing import Encoder
from pebble_train.schedule import Batches, learning_rate_factor
from pebble_train.scoring import overall, teacher_forced_scores
from pebble_train.tokenizer import EOS, save_tokenizer, train_sentencepiece
from transformers import LlamaForCausalLM

log = logging.getLogger("pebble")


@dataclass(frozen=True)
class Options:
    minutes: float
    work: Path
    out: Path
    seed: int
    tokens_per_step: int
    muon_lr: float
    adam_lr: float
    optimizer: str
    check_every: float  # minutes between progress checks and checkpoints


@dataclass
class Progress:
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    asked_tokens: int = 0


def make_optimizers(
    model: LlamaForCausalLM, options: Options
) -> list[tuple[torch.optim.Optimizer, float]]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    if options.optimizer == "adamw":
        both = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        return [(torch.optim.AdamW(both, betas=(0.9, 0.98), foreach=True), options.adam_lr)]
    return [
        (Muon(matrices, weight_decay=0.1), options.muon_lr),
        (torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0), options.adam_lr),
    ]


def train(options: Options) -> None:
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer = options.work / "tokenizer.model"
    if not tokenizer.exists():
        tokenizer.write_bytes(train_sentencepiece(options.seed))
    encoder = Encoder(tokenizer.read_bytes())
    eos = encoder.sp.piece_to_id(EOS)
    device = pick_device()
    dtype = autocast_dtype(device)
    model = build(encoder.end, eos, options.seed).to(device)
    optimizers = make_optimizers(model, options)
    progress = Progress()
    checkpoint = options.work / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        progress = Progress(**state["progress"])
        log.info("going on from step %d after %.1f minutes", progress.steps, progress.seconds / 60)
    # The number of steps already made is part of the seed: a resumed run must not repeat its text.
    batches = Batches(encoder, options.seed + 1 + progress.steps, options.tokens_per_step)
    dev = held_out(Split.DEV, 24, options.seed)
    log.info(
        "%d parameters on %s, %s, %d dev questions",
        sum(p.numel() for p in model.parameters()), device, dtype or "float32", len(dev),
    )  # fmt: skip

    def save() -> None:
        parts = {
            "model": model.state_dict(),
            "optimizers": [o.state_dict() for o, _ in optimizers],
            "progress": vars(progress),
        }
        torch.save(parts, checkpoint.with_suffix(".partial"))
        checkpoint.with_suffix(".partial").replace(checkpoint)

    total = options.minutes * 60
    checked = progress.seconds
    smooth = 0.0
    model.train()
    while progress.seconds < total:
        began = time.monotonic()
        done = progress.seconds / total
        factor = learning_rate_factor(done)
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
        batch = batches.next(done).to(device)
        with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        smooth = value if progress.steps == 0 or smooth == 0.0 else 0.95 * smooth + 0.05 * value
        progress.steps += 1
        progress.tokens += int((batch.chats >= 0).sum())
        progress.asked_tokens += int((batch.targets >= 0).sum())
        progress.seconds += time.monotonic() - began
        if progress.steps % 25 == 0:
            log.info(
                "step %d, %.1f min, loss %.3f, rate %.2f, %.0f tok/s",
                progress.steps, progress.seconds / 60, smooth, factor, progress.tokens / progress.seconds,
            )  # fmt: skip
        if progress.seconds - checked > options.check_every * 60:
            checked = progress.seconds
            began = time.monotonic()
            scores = teacher_forced_scores(model, encoder, dev, device)
            batches.favour_weak_tasks(scores)
            shown = " ".join(f"{task}={score:.2f}" for task, score in scores.items())
            log.info("dev %.3f at %.1f min: %s", overall(scores), progress.seconds / 60, shown)
            progress.seconds += time.monotonic() - began
            save()
    save()
    scores = teacher_forced_scores(model, encoder, dev, device)
    log.info("dev at the end %.3f: %s", overall(scores), scores)
    export(model, tokenizer.read_bytes(), options.out)
    log.info("done: %s", progress)


def export(model: LlamaForCausalLM, tokenizer: bytes, out: Path) -> None:
    encoder = Encoder(tokenizer)
    save_tokenizer(tokenizer, out)
    save_model(model, out, encoder.end, encoder.sp.piece_to_id(EOS))


def parse() -> tuple[Options, bool]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parent
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "pebble-training"
    )
    parser.add_argument("--out", type=Path, default=here / "pebble")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens-per-step", type=int, default=2048)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--check-every", type=float, default=3)
    parser.add_argument(
        "--export-only", action="store_true", help="export the last checkpoint, train nothing"
    )
    given = vars(parser.parse_args())
    only = given.pop("export_only")
    return Options(**given), only


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    options, export_only = parse()
    if not export_only:
        train(options)
        return
    tokenizer = (options.work / "tokenizer.model").read_bytes()
    encoder = Encoder(tokenizer)
    model = build(encoder.end, encoder.sp.piece_to_id(EOS), options.seed)
    state = torch.load(options.work / "checkpoint.pt", map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    export(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
