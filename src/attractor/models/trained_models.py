"""Models made of the blocks of ``attractor.nn``, in memory or in the folder of a run of ``attractor train``."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attractor.errors import CheckpointError, InputError, StoreError, UnsupportedError
from attractor.files import read_json
from attractor.laws import Causal, LayerNorm, Norm, RMSNorm
from attractor.models.attention_layers import Heads, Layer, Projections
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import Config, Family, Modules
from attractor.models.structure import call_model
from attractor.models.tensors import LiveTensors, Reader
from attractor.nn import TransformerBlock


class BlockStack(Family):
    """A list of ``TransformerBlock``; the configuration holds the model. Blocks of a looped model occur once for each loop."""

    name = "attractor"
    title = "Models of attractor.nn"
    stores_refinements = False

    def stacks(self, config: Config) -> dict[str, int]:
        return {"": config.num_hidden_layers}

    def path(self, stack: str, index: int) -> str:
        return ""  # tensors are not read by their names

    def _block(self, config: Config, index: int) -> Any:
        return config.module.get_submodule(self._name(config, index))

    def _name(self, config: Config, index: int) -> str:
        return f"{config.blocks}.{index % config.distinct}"

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        block = self._block(config, index)
        source = _read_heads(block.attention, read)
        norms = [_read_norm(norm, read) for norm in block.norms]
        placement = {"pre": "pre", "peri": "peri", "none": "none"}.get(block.placement, "post")
        if placement in ("pre", "peri"):
            norm = norms[0]
        else:  # the last norm of the block below
            below = self._block(config, index - 1).norms if index else ()
            norm = _read_norm(below[1], read) if placement == "post" and len(below) > 1 else None
        after = norms[2] if len(norms) == 4 else None
        undefined = {} if source.options["kernel"].bilinear else {"interaction": NOT_BILINEAR}
        notes = () if block.attention.refinement is None else (_describe_refinement(block.attention.refinement),)
        return Layer(
            index,
            f"layer {index}",
            source,
            norm,
            placement=placement,  # type: ignore[arg-type]
            output_norm=after,
            undefined=undefined,
            notes=notes,
        )

    def modules(self, stack: str, slot: int) -> Modules:
        raise UnsupportedError("the modules of a model of attractor.nn depend on the model")

    def hooked(self, config: Config, stack: str, index: int) -> Modules:
        name = self._name(config, index)
        block = self._block(config, index)
        middle = f"{name}.norms.0" if block.placement not in ("pre", "peri", "none") else None
        return Modules(name, f"{name}.attention", f"{name}.attention", middle)

    def original(self, config: Config, index: int) -> tuple[nn.Module, Modules]:
        block = copy.deepcopy(self._block(config, index)).double().eval()
        placement = block.placement in ("pre", "peri")
        return nn.ModuleDict({"block": block}), Modules(
            "block", "block.attention", "block.attention", stream="block" if placement else None
        )

    def feed(self, model: nn.Module, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        block: Any = model.get_submodule("block")
        block(torch.randn(1, n, block.attention.dim, generator=draw, dtype=torch.float64))

    def run(self, model: Any, stack: str, inputs: dict[str, Tensor]) -> Any:
        """The last state, normalised, where the model has a method for it; otherwise what the model returns."""
        if hasattr(model, "hidden"):
            return (model.hidden(*inputs.values()),)
        return call_model(model, inputs)

    def last_state(self, model: Any, output: Any) -> Tensor:
        if not hasattr(model, "hidden"):
            raise UnsupportedError(f"a {type(model).__name__} has no method hidden that returns its last state")
        return output[0][0]

    def load(self, config: Config, dtype: torch.dtype) -> Any:
        return copy.deepcopy(config.module).to(dtype).eval()


NOT_BILINEAR = "scores are not bilinear in the tokens, so W does not exist"


def _describe_refinement(refinement: Any) -> str:
    return f"the refinement ({refinement.form}) is contained in the interactions"


def _read_heads(attention: Any, read: Reader) -> Heads:
    """The heads of a layer, with its refinement as further rows of query and key."""
    with torch.no_grad():
        # parametrisations (spectral norms) are computed in this precision
        attention = copy.deepcopy(attention).to(read.dtype)
        weights, positions = attention.export(read.dtype)
    parts = [None if part is None else part.to(read.device) for part in vars(weights).values()]
    options = {
        "scale": attention.scale_value(),
        "mask": Causal() if attention.causal else None,
        "positions": positions,
        "kernel": attention.kernel,
    }
    return Heads(Projections(*parts), options, dtype=read.dtype)  # type: ignore[arg-type]


def _read_norm(norm: Any, read: Reader) -> Norm:
    gain, eps = norm.weight.detach().to(read.device, read.dtype), float(norm.eps or 0.0)
    if isinstance(norm, nn.LayerNorm):
        return LayerNorm(gain, norm.bias.detach().to(read.device, read.dtype), eps)
    return RMSNorm(gain, eps=eps)


@dataclass(frozen=True, eq=False)
class _ModuleTensors:
    """The parameters of a model that was read from the folder of a run."""

    inner: LiveTensors
    place: str

    def names(self) -> Any:
        return self.inner.names()

    def read(self, name: str) -> Tensor:
        return self.inner.read(name)

    def describe(self) -> str:
        return self.place


def find_blocks(model: nn.Module) -> str | None:
    """The name of the longest list of ``TransformerBlock`` in a model; None if it has none."""
    found = [
        (len(part), name)
        for name, part in model.named_modules()
        if isinstance(part, (nn.ModuleList, nn.Sequential))
        and len(part)
        and all(isinstance(one, TransformerBlock) for one in part)
    ]
    return max(found, default=(0, None), key=lambda one: one[0])[1]


def open_blocks(model: nn.Module, name: str, dtype: torch.dtype, **fields: Any) -> Checkpoint:
    """The checkpoint of a model of ``attractor.nn`` in memory; ``fields`` are further entries of its configuration."""
    path = find_blocks(model)
    assert path is not None
    blocks: Any = model.get_submodule(path)
    parent: Any = model.get_submodule(path.rpartition(".")[0])
    attention = blocks[0].attention
    settings = {
        "model_type": "attractor",
        "module": model,
        "blocks": path,
        "distinct": len(blocks),
        "num_hidden_layers": len(blocks) * int(getattr(parent, "loops", 1)),
        "hidden_size": attention.dim,
        "num_attention_heads": attention.heads,
        "head_dim": attention.head_dim,
        **fields,
    }
    return Checkpoint(name, BlockStack(), SimpleNamespace(**settings), LiveTensors(model), dtype, model)


def is_run_folder(folder: Path) -> bool:
    """Whether a folder is one of ``attractor train``, or of weights that a run keeps."""
    if folder.parent.name == "kept" and folder.name.isdecimal() and not (folder / "config.json").exists():
        folder = folder.parent.parent
    try:
        entries = read_json(folder / "config.json")
        return {"task", "attention", "data"} <= set(entries)
    except (OSError, ValueError, TypeError):
        return False


def open_run(folder: Path, dtype: torch.dtype) -> Checkpoint:
    """The checkpoint of a run of ``attractor train``."""
    load = importlib.import_module("attractor.training").load  # training is above models
    try:
        return open_loaded(load(folder), dtype, str(folder))
    except (StoreError, InputError) as error:
        raise CheckpointError(str(error)) from None


def open_loaded(run: Any, dtype: torch.dtype, name: str | None = None) -> Checkpoint:
    """The checkpoint of a ``TrainedRun``; its model can be copied to other precisions and devices."""
    config = run.config
    fields: dict[str, Any] = {"tokenizer": run.tokenizer, "rebuild": run.draw_model}
    if config.task == "text":
        fields["vocab_size"] = run.model.embedding.num_embeddings
        fields["tie_word_embeddings"] = run.model.adaptive is None
        fields |= {"max_position_embeddings": config.context} if config.positions in ("absolute", "sinusoidal") else {}
    opened = open_blocks(run.model, name or run.name, dtype, **fields)
    assert isinstance(opened.tensors, LiveTensors)
    return replace(opened, tensors=_ModuleTensors(opened.tensors, str(run.folder)), model=None)
