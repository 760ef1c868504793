"""Finished and unfinished runs as models: ``load``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError, StoreError
from attractor.files import read_json
from attractor.models import Checkpoint, open_loaded
from attractor.training.config import Config
from attractor.training.data import open_data
from attractor.training.data.text import Tokenizer, read_tokenizer
from attractor.training.models import LanguageModel, VisionModel, build_model
from attractor.training.run_folder import History, RunFolder


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """The model of a run.

    ``audit``, ``trace``, ``iterate`` and ``checkpoint`` take it, its folder, and the folder of kept weights.

    Attributes
    ----------
    folder : folder of the run.
    config : its configuration.
    model : the model, in evaluation mode and float32.
    tokenizer : tokens of a run on text; None for images.
    step : step of the weights.
    steps : steps that can be loaded.
    inputs : vocabulary, or shape, classes and moments of the images.
    """

    folder: Path
    config: Config
    model: LanguageModel | VisionModel
    tokenizer: Tokenizer | None
    step: int
    steps: tuple[int, ...]
    inputs: Any = None

    @cached_property
    def history(self) -> History:
        """Losses, scores and measurements along the run."""
        return History.read(self.folder)

    @property
    def name(self) -> str:
        """The folder, and the step if it is not the last one."""
        return str(self.folder) if self.step == self.steps[-1] else f"{self.folder} at step {self.step}"

    @torch.no_grad()
    def generate(
        self, prompt: str = "", tokens: int = 100, *, temperature: float = 1.0, top: int | None = None, seed: int = 0
    ) -> str:
        """Continue a text.

        Parameters
        ----------
        prompt : the beginning, of at least one token; a new line by default.
        tokens : number of tokens to add.
        temperature : divisor of the logits; 0 takes the most likely token.
        top : draw from this many of the most likely tokens only.
        seed : of the draws.

        Returns
        -------
        str : the prompt and its continuation. The model reads at most the last ``context`` tokens.
        """
        if not isinstance(self.model, LanguageModel) or self.tokenizer is None:
            raise InputError(f"the run in {self.folder} is of images, and only models of text generate")
        if not 0 <= temperature < float("inf"):
            raise InputError(f"temperature must be a number of at least 0, got {temperature!r}")
        for name, value, least in (("tokens", tokens, 0), ("top", 1 if top is None else top, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        ids = self.tokenizer.encode(prompt or "\n")
        if not ids:
            raise InputError(f"the prompt {prompt!r} has no token")
        begin, draw = len(ids), torch.Generator().manual_seed(seed)
        for _ in range(tokens):
            logits = self.model.logits(torch.tensor([ids[-self.config.context :]]))[0, -1].double()
            if temperature == 0:
                ids.append(int(logits.argmax()))
                continue
            if top is not None and top < len(logits):
                logits[logits < logits.topk(top).values[-1]] = -float("inf")
            ids.append(int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)))
        return prompt + self.tokenizer.decode(ids[begin:]) if prompt else self.tokenizer.decode(ids[begin:])

    @torch.no_grad()
    def classify(self, images: Tensor) -> Tensor:
        """Return the probabilities (batch, classes) of images (batch, height, width, channels) of bytes."""
        if not isinstance(self.model, VisionModel):
            raise InputError(f"the run in {self.folder} is of text, and only models of images classify")
        return self.model.logits(images).softmax(-1)

    def draw_model(self, seed: int) -> LanguageModel | VisionModel:
        """Return a model of the configuration with random weights, those of the start of a run of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build_model(dataclasses.replace(self.config, seed=seed), self.inputs)

    def open_checkpoint(self, dtype: torch.dtype = torch.float64) -> Checkpoint:
        """Return the attention of the model, layer by layer; see ``checkpoint``."""
        return open_loaded(self, dtype)

    def __repr__(self) -> str:
        kind = type(self.model).__name__
        return f"TrainedRun({str(self.folder)!r}, {kind}, {self.config.attention} attention, step {self.step})"


def load(folder: str | Path, step: int | None = None) -> TrainedRun:
    """Open the model of a run, with its tokenizer, configuration and history.

    Parameters
    ----------
    folder : folder of a run, or of weights that it keeps (``FOLDER/kept/STEP``).
    step : step of the weights: of the last checkpoint by default, or one that the run keeps (entry ``keep``).
    """
    path = Path(folder).expanduser()
    if path.parent.name == "kept" and path.name.isdecimal() and step is None and not (path / "config.json").exists():
        path, step = path.parent.parent, int(path.name)
    run = RunFolder(path)
    if not run.has_run():
        seeds = sorted(found.parent.name for found in path.glob("seed*/config.json"))
        more = f"; the runs of its seeds are {', '.join(seeds)}" if seeds else ""
        raise StoreError(f"{path} holds no run of attractor train: it has no config.json{more}")
    config = run.config()
    last = run.last_step()
    found: set[int] = {*run.kept_steps(), *([last] if last else [])}
    steps = tuple(sorted(found))
    if not steps:
        raise StoreError(f"the run in {path} has no checkpoint yet")
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        raise InputError(
            f"the run in {path} has no weights of step {chosen}; it has those of {', '.join(map(str, steps))} (the entry keep "
            "keeps more)"
        )
    place = run.checkpoint
    if chosen == last:
        run.check()
    else:
        place = path / "kept" / str(chosen)
    inputs = _read_inputs(run, config)
    model = build_model(config, inputs)
    _load_weights(model, place / "model.safetensors")
    tokenizer = read_tokenizer(config.tokens, path) if config.task == "text" else None
    return TrainedRun(path, config, model.eval(), tokenizer, chosen, steps, inputs)


def _read_inputs(run: RunFolder, config: Config) -> Any:
    """What a model depends on beside the configuration; runs of earlier versions read it from their data."""
    file = run.path / "inputs.json"
    if not file.exists():
        return open_data(config, run.path / "data")
    try:
        return SimpleNamespace(**read_json(file))
    except (OSError, ValueError, TypeError):
        raise StoreError(f"{file} cannot be read") from None


def _load_weights(model: torch.nn.Module, file: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(file)
    except (SafetensorError, OSError) as error:
        raise StoreError(f"{file} cannot be read ({error}): it is damaged") from None
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        raise StoreError(f"{file} does not fit its configuration: {lines[0]}") from None
    tied = [name for name in missing if not name.endswith("form_letters")]
    if tied or unexpected:
        raise StoreError(f"{file} does not fit its configuration: {', '.join([*tied, *unexpected][:3])}")
