"""Monitoring of a training run: measurements of tokens, heads and gradients of any model, every few steps."""

from __future__ import annotations

import csv
import importlib
import inspect
import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attractor.errors import AttractorError, InputError, UnsupportedError
from attractor.files import check_target, write_atomic
from attractor.models import (
    BlockChain,
    Finding,
    MeasurementCollector,
    Measurements,
    audit,
    call_model,
    choose_chain,
    choose_part,
    find_chains,
    find_findings,
    record_chain,
    unwrap,
)

CURVES = ("token_norm", "cosine", "centred_cosine", "centred_rank", "anisotropy", "largest_norm")
WEIGHTS = ("attention_entropy", "relative_entropy", "sink_weight", "self_weight")
LABELS = ("labels", "label")  # arguments that only a loss needs
SPIKE = 10.0  # times the median of the gradient norms so far, from which a gradient norm is reported
HISTORY = 5  # gradient norms from which a median is taken
LASTING = (
    100  # steps for which a finding of TRANSIENT must last: healthy runs from scratch have them for some tens of steps
)
TRANSIENT = ("over_smoothing", "rank_collapse", "anisotropy")  # while a model learns the frequencies of tokens only


class MonitorWarning(UserWarning):
    """A finding of a monitor that was not there at its first measurement."""


class Monitor:
    """Measures a model while it is trained; see ``monitor``.

    Attributes
    ----------
    every : number of steps between measurements.
    history : one flat dict of numbers for each measurement, with the key "step".
    findings : findings of the last measurement.
    seconds : time that measurements took so far.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        probe: Any = None,
        texts: int = 2,
        max_tokens: int = 256,
        spectra: int = 10,
        stack: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"a monitor watches a torch.nn.Module, not a {type(model).__name__}")
        for name, value, least in (
            ("every", every, 1),
            ("texts", texts, 1),
            ("max_tokens", max_tokens, 2),
            ("spectra", spectra, 0),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        self.model, self.every, self.stack = unwrap(model), every, stack
        self.texts, self.max_tokens, self.spectra = texts, max_tokens, spectra
        self.history: list[dict[str, float]] = []
        self.findings: tuple[Finding, ...] = ()
        self.seconds, self._step, self._known = 0.0, -1, set[str]()
        self._first: list[Measurements] = []
        self._since: dict[str, int] = {}
        self._chain: BlockChain | None = None
        self._without_family = False
        self._probe = None if probe is None else self._read_probe(probe)
        if self._probe is None:
            self._capture()

    def step(self, loss: Any = None) -> dict[str, float] | None:
        """Count a step; every ``every`` steps, the first included, measure and return the numbers.

        Call it after ``backward`` and before gradients are set to zero, so that gradient norms are those of the step.

        Parameters
        ----------
        loss : stored as "loss".

        Returns
        -------
        dict or None : flat numbers, for W&B, TensorBoard or a CSV file; None at steps without a measurement.
        """
        self._step += 1
        if self._step % self.every:
            return None
        return self.measure(loss)

    def measure(self, loss: Any = None) -> dict[str, float]:
        """Measure now, whatever the step."""
        start = time.perf_counter()
        record: dict[str, float] = {"step": float(max(self._step, 0))}
        if loss is not None:
            record["loss"] = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        if self._probe is None:
            raise InputError(
                "the monitor has seen no forward pass of the model: call step() after one, or give probe=..."
            )
        with self._undisturbed():
            parts = [self._run(inputs) for inputs in self._probe]
        record |= _flatten(parts)
        record |= self._gradients()
        if self.spectra and len(self.history) % self.spectra == 0:
            record |= self._spectra()
        self.seconds += time.perf_counter() - start
        record["monitor_seconds"] = time.perf_counter() - start
        self._warn(parts, record)
        self.history.append(record)
        return record

    def frame(self) -> Any:
        """A pandas DataFrame with one row for each measurement."""
        from attractor.serialization import to_frame

        names = self._names()
        return to_frame([{name: row.get(name, math.nan) for name in names} for row in self.history])

    def save(self, path: str | Path) -> None:
        """Write the history to a CSV file."""
        place, names = check_target(path), self._names()
        with write_atomic(place) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.history)

    def trainer_callback(self) -> Any:
        """A ``TrainerCallback`` of transformers that calls ``step`` and adds the numbers to what the Trainer logs next."""
        from transformers import TrainerCallback

        owner = self

        class MonitorCallback(TrainerCallback):
            latest: dict[str, float] | None = None

            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                owner._step = state.global_step - 1
                self.latest = owner.step() or self.latest

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if self.latest is not None and logs is not None:
                    numbers = {f"monitor/{name}": value for name, value in self.latest.items()}
                    logs |= numbers
                    if state.log_history:
                        state.log_history[-1] |= numbers
                    self.latest = None

        return MonitorCallback()

    def lightning_callback(self) -> Any:
        """A Lightning callback that calls ``step`` and sends the numbers to the loggers of the trainer."""
        owner, Callback = self, _import_lightning_callback()

        class MonitorCallback(Callback):  # pyright: ignore[reportUntypedBaseClass]
            def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
                owner._step = trainer.global_step - 1
                record = owner.step()
                if record is not None:
                    for logger in trainer.loggers:
                        logger.log_metrics(
                            {f"monitor/{name}": value for name, value in record.items()}, trainer.global_step
                        )

        return MonitorCallback()

    # ------------------------------------------------------------------ the probe

    def _capture(self) -> None:
        """Keep the first inputs of the model as the probe."""
        if getattr(self.model, "_compiled_call_impl", None) is not None:
            raise InputError(
                "a hook would change the graph of a compiled model: give the inputs to measure as probe=..."
            )

        def keep(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
            handle.remove()
            try:
                bound = inspect.signature(module.forward).bind_partial(*given, **options).arguments
            except TypeError:
                return
            flat = {**bound, **bound.pop("kwargs", {})} if isinstance(bound.get("kwargs"), dict) else dict(bound)
            self._probe = self._read_probe(flat)

        handle = self.model.register_forward_pre_hook(keep, with_kwargs=True)

    def _read_probe(self, probe: Any) -> list[dict[str, Tensor]]:
        """The first rows of a batch, one dict of inputs for each, cut to ``max_tokens`` and without padding."""
        if isinstance(probe, Mapping):
            tensors = {name: value for name, value in probe.items() if isinstance(value, Tensor) and value.ndim}
            batch = {name: value for name, value in tensors.items() if name not in LABELS}
        elif isinstance(probe, Tensor):
            first = next(iter(inspect.signature(self.model.forward).parameters), "input_ids")
            batch = {first: probe.unsqueeze(0) if probe.ndim == 1 else probe}
        else:
            raise InputError(
                f"probe must be a tensor or a dict of tensors, such as a batch of the data, got {type(probe).__name__}"
            )
        if not batch:
            raise InputError("the inputs of the model contain no tensors to measure; give probe=...")
        rows = min(len(value) for value in batch.values())
        if rows < 1:
            raise InputError("the probe is an empty batch")
        return [
            self._cut({name: value[row : row + 1].detach().clone() for name, value in batch.items()})
            for row in range(min(rows, self.texts))
        ]

    def _cut(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        mask = inputs.get("attention_mask")
        ids = next((value for value in inputs.values() if value.ndim == 2 and not value.is_floating_point()), None)
        if ids is None:
            return inputs
        keep = torch.arange(ids.shape[1], device=ids.device)
        if mask is not None and mask.ndim == 2 and mask.shape == ids.shape:
            keep = keep[mask[0].bool()]
        keep = keep[: self.max_tokens]
        if len(keep) < 2:
            raise InputError(f"the probe has a text of {len(keep)} tokens; a measurement needs at least two")
        length = ids.shape[1]
        return {
            name: value[:, keep] if value.ndim >= 2 and value.shape[1] == length else value
            for name, value in inputs.items()
        }

    # ------------------------------------------------------------------ measurements

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Evaluation mode and eager execution, with modes, random states and compiled graphs as they were afterwards."""
        modes = [(module, module.training) for module in self.model.modules()]
        devices = sorted({part.device.index or 0 for part in self.model.parameters() if part.device.type == "cuda"})
        with ExitStack() as changes:
            changes.enter_context(torch.random.fork_rng(devices=devices))
            changes.enter_context(torch.no_grad())
            changes.enter_context(torch.compiler.set_stance("force_eager"))
            try:
                for module, _ in modes:
                    module.training = False
                yield
            finally:
                for module, training in modes:
                    module.training = training

    def _run(self, inputs: dict[str, Tensor]) -> Measurements:
        device = next((part.device for part in self.model.parameters()), torch.device("cpu"))
        inputs = {name: value.to(device) for name, value in inputs.items()}
        part, name = choose_part(self.model, inputs, self.stack)
        if self._chain is None:
            chains = find_chains(part, lambda: call_model(part, inputs))
            self._chain = choose_chain(
                chains, None if self.stack == name else self.stack, f"the {type(self.model).__name__}"
            )
            self._prefix = f"{name}." if name else ""
        collector = MeasurementCollector(None, True, ranks=False)
        with record_chain(part, self._chain, collector.add, True):
            call_model(part, inputs)
        return collector.result()

    def _gradients(self) -> dict[str, float]:
        """Gradient norm of the model and of every block; nothing where there are no gradients."""
        norms = {
            name: part.grad.detach().float().norm()
            for name, part in self.model.named_parameters()
            if part.grad is not None
        }
        if not norms:
            return {}
        found = {"grad_norm": float(torch.stack([one.to(torch.float64).cpu() for one in norms.values()]).norm())}
        blocks = list(dict.fromkeys(self._chain.calls)) if self._chain else []
        for index, block in enumerate(blocks):
            own = [one.double().cpu() for name, one in norms.items() if name.startswith(f"{self._prefix}{block}.")]
            if own:
                found[f"block{index}/grad_norm"] = float(torch.stack(own).norm())
        return found

    def _spectra(self) -> dict[str, float]:
        """Value abscissa of every layer and number of heads of each label, for models with a family."""
        if self._without_family:
            return {}
        try:
            with torch.no_grad():
                found = audit(self.model, nulls=0, verify=False, detail="heads")
        except AttractorError:
            self._without_family = True
            return {}
        record: dict[str, float] = {}
        for head in found.heads:
            name = f"block{head.layer}/value_abscissa"
            record[name] = max(record.get(name, -math.inf), head.value.abscissa)
            record[f"heads/{head.label.name}"] = record.get(f"heads/{head.label.name}", 0.0) + 1.0
        return record

    def _warn(self, parts: Sequence[Measurements], record: dict[str, float]) -> None:
        """Warn of findings that were not there at the first measurement, and of gradients that are not finite or far too large."""
        step = int(record["step"])
        if not self._first:
            self._first, self._baseline = list(parts), f"the weights of step {step}"
        self.findings = find_findings(parts, [self._first], baseline=self._baseline)
        for name in ("loss", "grad_norm"):
            if not math.isfinite(record.get(name, 0.0)):
                self._tell(f"not finite {name}", f"step {step}: {name} is {record[name]}")
        past = sorted(row["grad_norm"] for row in self.history if math.isfinite(row.get("grad_norm", math.nan)))
        if len(past) >= HISTORY and record.get("grad_norm", 0.0) > SPIKE * past[len(past) // 2]:
            self._tell(
                f"spike {step}",
                f"step {step}: the gradient norm is {record['grad_norm']:.4g}, its median so far {past[len(past) // 2]:.4g}",
            )
        self._since = {one.kind: self._since.get(one.kind, step) for one in self.findings}
        for one in self.findings:
            if not self.history:
                self._known.add(one.kind)
            elif one.kind not in TRANSIENT or step - self._since[one.kind] >= LASTING:
                self._tell(one.kind, f"step {step}: {one.sentence()}; {one.meaning}")

    def _tell(self, key: str, message: str) -> None:
        if key not in self._known:
            self._known.add(key)
            warnings.warn(message, MonitorWarning, stacklevel=5)

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.history for name in row))


def _import_lightning_callback() -> Any:
    """The class ``Callback`` of the package whose Trainer is in use: ``lightning`` or ``pytorch_lightning``."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise UnsupportedError("Lightning is not installed: pip install lightning")


def _flatten(parts: Sequence[Measurements]) -> dict[str, float]:
    """Means over texts: of curves after every block, and of heads over the heads of a block, with the most extreme head."""
    record: dict[str, float] = {}
    for name in CURVES:
        values = torch.stack([part.curves[name] for part in parts]).nanmean(0).tolist()
        record[f"input/{name}"] = values[0]
        record |= {f"block{index}/{name}": value for index, value in enumerate(values[1:])}
    moved = torch.stack([part.blocks["displacement"] for part in parts]).mean(0).tolist()
    record |= {f"block{index}/displacement": value for index, value in enumerate(moved)}
    for name in WEIGHTS:
        if not all(part.heads for part in parts):
            continue
        values = torch.stack([part.heads[name] for part in parts]).nanmean(0)
        for index, row in enumerate(values):
            known = row[~row.isnan()]
            if len(known):
                record |= {f"block{index}/{name}": float(known.mean()), f"block{index}/{name}_min": float(known.min())}
                record[f"block{index}/{name}_max"] = float(known.max())
    return record


def monitor(
    model: nn.Module,
    every: int = 100,
    *,
    probe: Any = None,
    texts: int = 2,
    max_tokens: int = 256,
    spectra: int = 10,
    stack: str | None = None,
) -> Monitor:
    """Monitor the training of a model: call ``step`` of the result once in every training step.

    Every ``every`` steps the model runs once on a few texts, in evaluation mode and without gradients, and the residual stream, the
    attention weights and the gradients are measured. Random states, gradients, modes and compiled graphs are left as they were:
    the losses are the same bits with and without a monitor.

    Parameters
    ----------
    model : any module whose blocks can be found by structure, see ``trace``; wrappers are opened.
    every : number of steps between measurements.
    probe : inputs to measure, a batch of token ids or a dict of the model's arguments; by default the first batch that the model
        receives after this call.
    texts : rows of the probe that are used.
    max_tokens : tokens of each that are used.
    spectra : value spectra and regimes of heads are measured at every ``spectra``-th measurement, for models with a family; 0 for
        never.
    stack : which blocks, see ``trace``.

    Returns
    -------
    Monitor : ``step(loss)`` returns a flat dict of numbers at measurements; ``history``, ``frame()`` and ``save("run.csv")`` have all
        of them. Findings that appear during training are issued as ``MonitorWarning``, with the share of places that had them at the
        first measurement; over-smoothing, rank collapse and anisotropy if they last for 100 steps. ``trainer_callback()`` and
        ``lightning_callback()`` are callbacks for ``transformers.Trainer`` and Lightning.
    """
    return Monitor(model, every, probe, texts, max_tokens, spectra, stack)
