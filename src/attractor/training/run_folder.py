"""Folder of a run: configuration, history, checkpoints, and the figure of its curves."""

from __future__ import annotations

import hashlib
import math
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError, StoreError
from attractor.files import (
    DAMAGED,
    check_files,
    checksum_file,
    checksum_files,
    checksum_json,
    read_json,
    read_json_lines,
    reason,
    sync_file,
    sync_folder,
    sync_tree,
    write_atomic,
    write_json,
    write_json_lines,
)
from attractor.plotting import Curve, Panel, draw_panels
from attractor.serialization import to_frame
from attractor.training.config import Config
from attractor.training.dynamics import Dynamics

if TYPE_CHECKING:
    import pandas

FORMAT = 3  # of config.json: since 3 a sample of training depends on its position in the run alone
SCORES = {"accuracy": "accuracy", "bits_per_byte": "bits per byte"}  # the measures of runs, with their names


@dataclass(frozen=True)
class TrainingStep:
    """One line of ``curve.jsonl``.

    Attributes
    ----------
    step : number of the step, from 1.
    loss : mean training loss in nats.
    rate : learning rate.
    gradient : norm of the gradient before clipping.
    scores : at evaluations ``validation_loss``, ``bits_per_byte``, ``accuracy`` and so on; ``test_...`` at the end.
    dynamics : tokens along depth, at evaluations.
    """

    step: int
    loss: float
    rate: float
    scores: dict[str, float] = field(default_factory=dict)
    dynamics: Dynamics | None = None
    gradient: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the line, for JSON."""
        found: dict[str, Any] = {"step": self.step, "loss": self.loss, "rate": self.rate, **self.scores}
        found |= {} if self.gradient is None else {"gradient": self.gradient}
        return found if self.dynamics is None else {**found, "dynamics": self.dynamics.row()}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> TrainingStep:
        """Read a line."""
        rest = {
            name: value for name, value in row.items() if name not in ("step", "loss", "rate", "dynamics", "gradient")
        }
        scores = {name: math.nan if value is None else float(value) for name, value in rest.items()}
        dynamics = Dynamics.from_row(row["dynamics"]) if "dynamics" in row else None
        return cls(row["step"], row["loss"], row["rate"], scores, dynamics, row.get("gradient"))


class RunFolder:
    """The files of a run.

    ``config.json``, ``changed.json`` (entries set on top of the configuration file), ``inputs.json`` (size of the vocabulary, or shape of
    images) with the tokenizer, ``start.json`` (the evaluation before the first step), ``curve.jsonl`` (one line per step), ``checkpoint``
    (the last complete one) and ``kept/STEP`` (weights of other steps).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.curve, self.checkpoint = self.path / "curve.jsonl", self.path / "checkpoint"

    def has_run(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.json").exists()

    def check_new(self) -> None:
        """Raise if the folder has a run."""
        if self.has_run():
            raise StoreError(f"{self.path} holds a run already: resume it, or give another folder")

    def create(self, config: Config, changed: Iterable[str] = (), data: Any = None) -> None:
        """Start a new run on ``data``."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        if data is not None:
            write_json(self.path / "inputs.json", data.describe())
            tokenizer = getattr(data, "tokenizer", None)
            if tokenizer is not None and tokenizer.file is not None:
                with write_atomic(self.path / tokenizer.name) as temporary:
                    shutil.copyfile(tokenizer.file, temporary)
        write_json(self.path / "changed.json", [*changed])
        write_json(self.path / "config.json", {"format": FORMAT, **config.row()}, indent=1)

    def entries(self) -> dict[str, Any]:
        """Return the entries of the run's configuration, as they were written."""
        return {name: value for name, value in self._stored().items() if name not in ("format", "extended")}

    def _stored(self) -> dict[str, Any]:
        try:
            found = read_json(self.path / "config.json")
        except (OSError, ValueError):
            raise StoreError(
                f"{self.path} holds no run that could be resumed: it has no readable config.json"
            ) from None
        if not isinstance(found, dict):
            raise StoreError(f"{self.path} holds no run that could be resumed: its config.json is damaged")
        return found

    def config(self) -> Config:
        """Return the configuration of the run."""
        try:
            return Config(**self.entries())
        except (TypeError, InputError) as error:
            raise StoreError(
                f"{self.path} holds no run that could be resumed: its config.json is damaged ({error})"
            ) from None

    def changed(self) -> list[str]:
        """Return the names of entries set on top of the configuration file; none if the run does not record them."""
        with suppress(OSError, ValueError, TypeError):
            known = self.entries()
            names = read_json(self.path / "changed.json")
            return [name for name in names if name in known]
        return []

    def check_config(self, config: Config) -> None:
        """Raise if the run has another configuration, or reads its data in another order."""
        if self._stored().get("format") != FORMAT:
            raise StoreError(
                f"the run in {self.path} was started by an earlier version of attractor, which drew its batches in another way: "
                "it cannot be continued to the same curve; start it again in another folder"
            )
        old, new = self.entries(), config.row()
        other = sorted(name for name in new if old.get(name) != new[name])
        if other == ["steps"] and config.steps > old["steps"]:
            last = self.last_step()
            if last == old["steps"]:
                return
            raise StoreError(
                f"the run in {self.path} stopped at step {last} of {old['steps']}: resume it without another number of steps first, "
                "then extend it"
            )
        if other:
            named = ", ".join(f"{name} ({old.get(name)!r} there, {new[name]!r} here)" for name in other)
            raise StoreError(f"the run in {self.path} has another configuration: {named}")

    def extend(self, steps: int) -> None:
        """Set the number of steps of a finished run to a larger one."""
        stored = self._stored()
        if steps > stored["steps"]:
            before = [*stored.get("extended", []), stored["steps"]]
            write_json(self.path / "config.json", {**stored, "steps": steps, "extended": before}, indent=1)

    def last_step(self) -> int:
        """Return the step of the checkpoint; 0 without one."""
        return int(self._record()["step"]) if self.checkpoint.exists() else 0

    def _record(self) -> dict[str, Any]:
        """Return what the checkpoint's ``step.json`` says: its step, and checksums of its files, the curve and ``config.json``."""
        advice = "remove it to begin again"
        try:
            record = read_json(self.checkpoint / "step.json")
            int(record["step"])
            sealed = {name: value for name, value in record.items() if name != "checksum"}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                f"the checkpoint in {self.checkpoint} is damaged: it has no readable step.json; {advice}"
            ) from None
        if sealed.keys() != {"step"} and record.get("checksum") != checksum_json(sealed):  # 0.2 wrote only the step
            raise StoreError(
                f"the checkpoint in {self.checkpoint} is damaged: step.json does not have its checksum; {advice}"
            )
        return record

    def check(self) -> None:
        """Raise if the checkpoint, the curve up to it or the configuration is damaged."""
        if not self.checkpoint.exists():
            return
        record, what = self._record(), f"the checkpoint in {self.checkpoint}"
        if "files" not in record:
            return self._check_archives(what)
        check_files(self.checkpoint, record["files"], what)
        entries = self.entries()
        lengths = [entries["steps"], *self._stored().get("extended", [])]  # of a finished run that was extended
        if record["config"] not in [checksum_json({**entries, "steps": steps}) for steps in lengths]:
            raise StoreError(f"{self.path / 'config.json'} is not the one that the run began with; {DAMAGED}")
        return self.check_curve()

    def _check_archives(self, what: str) -> None:
        """Check the archives of a checkpoint without checksums, which attractor 0.2 wrote: zip has a crc32 of its members."""
        for file in [*self.checkpoint.glob("*.pkl"), *self.checkpoint.glob("*.bin")]:
            try:
                with zipfile.ZipFile(file) as archive:
                    bad = archive.testzip()
            except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError):
                bad = file.name
            if bad is not None:
                raise StoreError(f"{what} is damaged: its file {file.name} is not complete; {DAMAGED}")

    def check_curve(self) -> None:
        """Raise if the curve is not what it was when the checkpoint was written."""
        record = self._record() if self.checkpoint.exists() else {}
        if "curve" not in record:
            return
        size, expected = record["curve"]
        try:
            with self.curve.open("rb") as file:
                found = hashlib.sha256(file.read(size)).hexdigest()
        except OSError as error:
            raise StoreError(f"{self.curve} cannot be read: {reason(error)}") from None
        if found != expected:
            raise StoreError(f"{self.curve} is damaged: up to step {record['step']} it has another checksum; {DAMAGED}")

    def save(self, step: int, write: Callable[[Path], object]) -> None:
        """Replace the checkpoint by a new one that ``write(folder)`` fills; it is on the disk before it gets its name."""
        fresh, old = self.path / "checkpoint.new", self.path / "checkpoint.old"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        write(fresh)
        record: dict[str, Any] = {"step": step, "files": checksum_files(fresh), "config": checksum_json(self.entries())}
        if self.curve.exists():
            sync_file(self.curve)
            record["curve"] = [self.curve.stat().st_size, checksum_file(self.curve)]
        write_json(fresh / "step.json", {**record, "checksum": checksum_json(record)})
        sync_tree(fresh)
        if self.checkpoint.exists():
            self.checkpoint.rename(old)
        fresh.rename(self.checkpoint)
        sync_folder(self.path)
        shutil.rmtree(old, ignore_errors=True)

    def keep(self, step: int, state: Mapping[str, Any]) -> None:
        """Keep the weights of a step."""
        from safetensors.torch import save

        folder = self.path / "kept" / str(step)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: part.detach().cpu().contiguous() for name, part in state.items()}
        with write_atomic(folder / "model.safetensors") as temporary:
            temporary.write_bytes(save(tensors))

    def kept_steps(self) -> list[int]:
        """Return the steps whose weights are kept, in their order."""
        found = (file.parent.name for file in self.path.glob("kept/*/model.safetensors"))
        return sorted(int(name) for name in found if name.isdecimal())

    def recover(self) -> None:
        """Restore the old checkpoint if ``save`` was killed between its two renames."""
        old = self.path / "checkpoint.old"
        if not self.checkpoint.exists() and (old / "step.json").is_file():
            old.rename(self.checkpoint)

    def steps(self) -> list[TrainingStep]:
        """Return the curve so far, without a last line that was cut short."""
        return [TrainingStep.from_row(row) for row in read_json_lines(self.curve)]

    def save_start(self, start: TrainingStep) -> None:
        """Write the evaluation before the first step."""
        write_json(self.path / "start.json", start.row())

    def start(self) -> TrainingStep | None:
        """Return the evaluation before the first step; None for runs of earlier versions."""
        try:
            return TrainingStep.from_row(read_json(self.path / "start.json"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise StoreError(f"{self.path / 'start.json'} is damaged") from None

    def truncate(self, step: int) -> None:
        """Remove the lines after a step, that of the checkpoint, from the curve."""
        write_json_lines(self.curve, (row for row in read_json_lines(self.curve) if row["step"] <= step))


@contextmanager
def remove_on_error(*folders: Path) -> Iterator[None]:
    """Remove the folders that an interrupted block created, and parents of them that it created and that are empty."""
    fresh = [folder for folder in folders if not folder.exists()]
    above = {parent for folder in fresh for parent in folder.parents if not parent.exists()}
    try:
        yield
    except BaseException:
        for folder in fresh:
            shutil.rmtree(folder, ignore_errors=True)
        for parent in sorted(above, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):  # another process may have written there
                parent.rmdir()
        raise


@dataclass(frozen=True)
class History:
    """The configuration and the steps of one run."""

    name: str
    config: Config
    steps: list[TrainingStep]
    start: TrainingStep | None = None

    @classmethod
    def read(cls, folder: str | Path) -> History:
        """Read the folder of a run."""
        found = RunFolder(folder)
        config = found.config()
        found.check_curve()
        steps = found.steps()
        if not steps:
            raise StoreError(f"the run in {found.path} has no curve yet")
        return cls(f"seed {config.seed}", config, steps, found.start())

    @property
    def evaluations(self) -> list[tuple[TrainingStep, Dynamics]]:
        """The start and the steps with scores, and their dynamics."""
        steps = [*([] if self.start is None else [self.start]), *self.steps]
        return [(step, step.dynamics) for step in steps if step.dynamics is not None]

    @property
    def measure(self) -> str:
        """Name of the score by which the run is judged."""
        return next(name for name in SCORES if any(name in step.scores for step in self.steps))

    def losses(self, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and training losses, averaged over neighbours to at most ``most`` points."""
        steps, losses = np.array([(step.step, step.loss) for step in self.steps], dtype=float).T
        pieces = np.array_split(np.arange(len(steps)), min(most, len(steps)))
        return np.array([steps[piece[-1]] for piece in pieces]), np.array([losses[piece].mean() for piece in pieces])

    def frame(self) -> pandas.DataFrame:
        """Return the curve as a pandas DataFrame: step, loss, rate, gradient norm and scores."""
        return to_frame(
            {"step": one.step, "loss": one.loss, "rate": one.rate, "gradient": one.gradient, **one.scores}
            for one in self.steps
        )

    def depth_frame(self) -> pandas.DataFrame:
        """Return the measurements along depth as a pandas DataFrame: step, depth and one column for each."""
        rows: list[dict[str, Any]] = []
        for step, dynamics in self.evaluations:
            numbers = dynamics.numbers()
            for depth in range(max(map(len, numbers.values()))):
                own = {name: values[depth] for name, values in numbers.items() if depth < len(values)}
                rows.append({"step": step.step, "depth": depth, **own})
        return to_frame(rows)


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation and confidence interval of a sample; None where it is too small."""

    count: int
    mean: float | None
    deviation: float | None
    interval: tuple[float, float] | None

    def row(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def summarise(values: Sequence[float], confidence: float = 0.95) -> Summary:
    """Summarise a sample, with the interval of Student's t for two values or more."""
    count = len(values)
    if count < 2:
        return Summary(count, float(values[0]) if count else None, None, None)
    from scipy.stats import t

    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(t.ppf(0.5 + confidence / 2, count - 1)) * deviation / math.sqrt(count)
    return Summary(count, mean, deviation, (mean - half, mean + half))


def draw_runs(runs: Sequence[History], path: str | Path | None = None) -> Any:
    """Draw losses, scores and tokens along depth of runs that differ in their seeds; return the figure without a path."""
    first = runs[0]
    measure = first.measure
    losses = [Curve(*map(tuple, run.losses(60)), name=run.name if len(runs) > 1 else "") for run in runs]
    scores = [
        Curve(
            [step.step for step, _ in run.evaluations],
            [step.scores[measure] for step, _ in run.evaluations],
            dots=False,
        )
        for run in runs
    ]
    ends = (first.evaluations[0], first.evaluations[-1])
    norms = [Curve(range(len(found.norm)), found.norm, f"step {step.step}") for step, found in ends]
    cosines = [Curve(range(len(found.cosine)), found.cosine, f"step {step.step}") for step, found in ends]
    panels = [
        Panel(tuple(losses), "step", "nats", "training loss"),
        Panel(tuple(scores), "step", SCORES[measure], "validation"),
        Panel(tuple(norms), "depth (blocks)", "mean norm", "norm of tokens"),
        Panel(tuple(cosines), "depth (blocks)", "mean cosine", "cosine of tokens"),
    ]
    return draw_panels(panels, describe_run(first), _caption(runs), path)


def describe_run(run: History) -> str:
    """Return one line on the model of a run."""
    config = run.config
    kind = "A vision Transformer" if config.task == "images" else f"A language model of {config.tokens}"
    sign = f" of sign {config.sign!r}" if config.sign else ""
    refined = f" with the refinement {config.refinement}{sign}" if config.refinement != "none" else ""
    return f"{kind}: {config.layers} layers, {config.dim} dimensions, {config.attention} attention{refined}"


def _caption(runs: Sequence[History]) -> str:
    seeds = ", ".join(str(run.config.seed) for run in runs)
    return (
        f"{'Seeds' if len(runs) > 1 else 'Seed'} {seeds}; losses are means over neighbouring steps; "
        f"tokens of four validation samples before every block and after the last ({runs[0].name})."
    )
