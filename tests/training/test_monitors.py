"""A monitor measures a training run and does not change it."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attractor as at
from attractor.errors import InputError
from attractor.training import Monitor, MonitorWarning

VOCABULARY, LENGTH = 32, 24


def build(seed: int = 0, **changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": LENGTH}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **ends, **changes}))


def batches(count: int, seed: int = 1) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (4, LENGTH), generator=draw) for _ in range(count)]


def train(model: Any, steps: int, watched: Monitor | None, rate: float = 1e-2, call: Any = None) -> list[float]:
    """A plain loop with dropout; ``call`` replaces the model, as a compiled one does."""
    torch.manual_seed(5)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    model.train()
    for ids in batches(steps):
        loss = (model if call is None else call)(input_ids=ids, labels=ids).loss
        loss.backward()
        if watched is not None:
            watched.step(loss)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_losses_are_the_same_bits_with_and_without() -> None:
    """Dropout draws from the global generator in every step; modes, gradients and parameters are those of the plain run."""
    plain, watched = build(), build()
    expected = train(plain, 12, None)
    monitor = at.monitor(watched, every=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorWarning)
        assert train(watched, 12, monitor) == expected
    assert all(module.training for module in watched.modules())
    assert watched.config._attn_implementation == plain.config._attn_implementation
    assert [row["step"] for row in monitor.history] == [0, 3, 6, 9]
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_compiled_graphs_are_left_alone() -> None:
    """The same losses, and no graph is compiled again after a measurement."""
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(len(compiled))
        return graph.forward

    def compile_model(model: Any) -> Any:
        return torch.compile(model, backend=backend)

    first = build(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = train(first, 6, None, call=compile_model(first))
        alone = len(compiled)
        torch._dynamo.reset()
        compiled.clear()
        second = build(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        wrapped = compile_model(second)
        monitor = at.monitor(wrapped, every=2, probe=batches(1)[0])
        assert train(second, 6, monitor, call=wrapped) == expected
    torch._dynamo.reset()
    assert len(compiled) == alone
    assert len(monitor.history) == 3


def test_numbers_are_those_of_a_trace() -> None:
    model = build().eval()
    ids = batches(1)[0]
    monitor = at.monitor(model, probe=ids, texts=1)
    record = monitor.measure()
    run = at.trace(model, ids[0])
    assert run.measurements is not None
    for name in ("token_norm", "cosine", "centred_rank", "largest_norm"):
        curve = run.measurements.curves[name].tolist()
        assert [record[f"{place}/{name}"] for place in ("input", "block0", "block1")] == pytest.approx(curve, rel=1e-5)
    entropy = run.measurements.heads["relative_entropy"]
    assert record["block1/relative_entropy_min"] == pytest.approx(float(entropy[1].min()), rel=1e-4)
    heads = at.audit(model, nulls=0, verify=False).heads
    assert sum(value for name, value in record.items() if name.startswith("heads/")) == len(heads)
    assert record["block1/value_abscissa"] == pytest.approx(max(one.value.abscissa for one in heads if one.layer == 1))


def test_gradient_norms_are_those_of_the_parameters() -> None:
    model = build()
    monitor = at.monitor(model, every=1)
    ids = batches(1)[0]
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    record = monitor.step(loss)
    assert record is not None
    whole = torch.stack([one.grad.norm() for one in model.parameters()]).norm()
    block = torch.stack([one.grad.norm() for one in model.transformer.h[1].parameters()]).norm()
    assert record["grad_norm"] == pytest.approx(float(whole), rel=1e-5)
    assert record["block1/grad_norm"] == pytest.approx(float(block), rel=1e-5)
    assert record["loss"] == pytest.approx(float(loss.detach()))


def test_entropy_collapse_is_reported_while_it_happens() -> None:
    """Queries and keys grow from step to step until heads attend to single keys."""
    model = build()
    monitor = at.monitor(model, every=1, probe=batches(1)[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MonitorWarning)
        for _ in range(12):
            monitor.step()
            with torch.no_grad():
                for block in model.transformer.h:
                    block.attn.c_attn.weight[:, :64] *= 2.0
    told = [str(one.message) for one in caught if issubclass(one.category, MonitorWarning)]
    assert sum("entropy collapse" in one for one in told) == 1
    assert any(one.kind == "entropy_collapse" for one in monitor.findings)


def test_padding_is_left_out_and_the_history_is_written(tmp_path: Path) -> None:
    model = build()
    mask = torch.ones(4, LENGTH, dtype=torch.long)
    mask[0, 10:] = 0
    monitor = at.monitor(model, every=1, probe={"input_ids": batches(1)[0], "attention_mask": mask}, texts=1)
    record = monitor.measure(loss=1.5)
    run = at.trace(model.eval(), batches(1)[0][0, :10])
    assert run.measurements is not None
    assert record["block0/token_norm"] == pytest.approx(float(run.measurements.curves["token_norm"][1]), rel=1e-5)
    monitor.save(tmp_path / "run.csv")
    with (tmp_path / "run.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["loss"]) == 1.5
    assert len(monitor.frame()) == 1


def test_the_trainer_calls_the_monitor(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": one, "labels": one} for batch in batches(4) for one in batch]

    def run(callbacks: list[Any], model: Any) -> list[float]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=2, logging_steps=1, report_to=[], disable_tqdm=True,
            save_strategy="no", use_cpu=True, seed=3,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    expected = run([], build())
    model = build()
    monitor = at.monitor(model, every=2)
    assert run([monitor.trainer_callback()], model) == expected
    assert [row["step"] for row in monitor.history] == [0, 2, 4]
    assert all("grad_norm" in row for row in monitor.history)


def test_a_module_of_ones_own() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 8)
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3)])

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return x

    torch.manual_seed(0)
    model = Model()
    monitor = at.monitor(model, every=1)
    model(batches(1)[0]).sum().backward()
    record = monitor.step()
    assert record is not None
    assert {"block2/cosine", "block2/grad_norm"} <= record.keys()
    assert not any(name.startswith("heads/") for name in record)


def test_bad_input_is_rejected() -> None:
    model = build()
    for arguments, message in (
        ({"every": 0}, "every"),
        ({"texts": 1.5}, "texts"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"probe": "text"}, "probe"),
        ({"probe": {"name": "x"}}, "no tensors"),
        ({"probe": torch.zeros(0, 5, dtype=torch.long)}, "empty"),
        ({"probe": torch.zeros(2, 1, dtype=torch.long)}, "at least two"),
    ):
        with pytest.raises(InputError, match=message):
            at.monitor(model, **arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        at.monitor("gpt2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no forward pass"):
        at.monitor(model, every=1).step()
