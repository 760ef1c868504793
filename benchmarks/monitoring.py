"""Train a GPT-2 on text with and without a monitor: in a plain loop, with ``transformers.Trainer`` and with Lightning.

Run with ``python benchmarks/monitoring.py [LOOP ...] [--size small|gpt2] [--steps N] [--every N] [--threads N]``. The text is the source
of Python's standard library, byte by byte. Both runs start from the same weights and see the same batches, dropout included; the
program fails unless all parameters are the same bits afterwards. The overhead is the time that measurements took over the rest of
the run. The target: at most 3% with ``--every 100``.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import logging as transformers_logging

import attractor as at
from attractor.training import Monitor, MonitorWarning

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "batch": 4},
    "small": {"n_embd": 256, "n_layer": 6, "n_head": 8, "n_positions": 128, "batch": 4},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 128, "batch": 8, "vocab_size": 50257},
}
RATE = 6e-4


def read_batches(steps: int, batch: int, length: int) -> list[torch.Tensor]:
    """Random pieces of the standard library as bytes, (steps) of (batch, length)."""
    folder = Path(warnings.__file__).parent
    names = ("argparse", "ast", "dataclasses", "datetime", "inspect", "tarfile", "typing")
    text = torch.frombuffer(
        bytearray(b"".join((folder / f"{name}.py").read_bytes() for name in names)), dtype=torch.uint8
    )
    draw = torch.Generator().manual_seed(1)
    begins = torch.randint(len(text) - length, (steps, batch), generator=draw).tolist()
    return [torch.stack([text[begin : begin + length].long() for begin in row]) for row in begins]


def train_plain(model: Any, batches: list[torch.Tensor], monitor: Monitor | None) -> None:
    """A loop of PyTorch."""
    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for ids in batches:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if monitor is not None:
            monitor.step(loss)
        optimizer.step()
        optimizer.zero_grad()


def train_transformers(model: Any, batches: list[torch.Tensor], monitor: Monitor | None) -> None:
    """The Trainer of transformers."""
    rows: Any = [{"input_ids": ids, "labels": ids} for batch in batches for ids in batch]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=len(batches), per_device_train_batch_size=len(batches[0]), learning_rate=RATE, report_to=[],
            disable_tqdm=True, save_strategy="no", use_cpu=True, seed=0, logging_steps=10**9,
        )  # fmt: skip
        callbacks = [] if monitor is None else [monitor.trainer_callback()]
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks).train()


def train_lightning(model: Any, batches: list[torch.Tensor], monitor: Monitor | None) -> None:
    """The Trainer of Lightning."""
    try:
        import lightning.pytorch as pl  # pyright: ignore[reportMissingImports]
    except ImportError:
        import pytorch_lightning as pl  # pyright: ignore[reportMissingImports]

    class Module(pl.LightningModule):  # pyright: ignore[reportUntypedBaseClass]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    for name in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    model.train()
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_steps=len(batches), accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[] if monitor is None else [monitor.lightning_callback()],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]


LOOPS = {"plain": train_plain, "trainer": train_transformers, "lightning": train_lightning}


def main() -> None:
    """Train with every loop that was asked for, with and without a monitor."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("loops", nargs="*", default=list(LOOPS), metavar="LOOP", help=", ".join(LOOPS))
    options.add_argument("--size", choices=SIZES, default="small")
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--every", type=int, default=100)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    transformers_logging.set_verbosity_error()
    size = {"vocab_size": 256, **SIZES[chosen.size]}
    batches = read_batches(chosen.steps, size.pop("batch"), size["n_positions"])
    print(f"{chosen.size}: {size}, batches {tuple(batches[0].shape)}, {chosen.steps} steps, {chosen.threads} threads")
    for name in chosen.loops:
        compare(name, batches, size, chosen.every)


def compare(name: str, batches: list[torch.Tensor], size: dict[str, int], every: int) -> None:
    """Run one loop twice, compare the parameters, and print the times."""
    models, seconds, monitor = [], [], None
    told: list[str] = []
    for watched in (False, True):
        torch.manual_seed(0)
        model: Any = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
        start = time.perf_counter()
        monitor = at.monitor(model, every=every) if watched else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            LOOPS[name](model, batches, monitor)
        told = [str(one.message) for one in caught if issubclass(one.category, MonitorWarning)]
        seconds.append(time.perf_counter() - start)
        models.append(model)
    assert monitor is not None
    pairs = zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise SystemExit(f"{name}: parameters differ with and without the monitor")
    share = monitor.seconds / (seconds[1] - monitor.seconds)
    print(
        f"{name:<10} {seconds[0]:7.1f} s without, {seconds[1]:7.1f} s with the monitor; {len(monitor.history)} measurements of "
        f"{monitor.seconds / len(monitor.history):.3f} s: overhead {share:.2%}; parameters are the same bits; {len(told)} warnings",
        flush=True,
    )
    for text in told:
        print(f"           {text}")


if __name__ == "__main__":
    main()
