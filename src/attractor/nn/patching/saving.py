"""Load a refined model that ``save_pretrained`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from attractor.errors import InputError, StoreError
from attractor.nn.patching.refine import RECORD, refine

END = ".refinement.theta"


def load_refined(folder: str | Path, factory: Any = None, **options: Any) -> Any:
    """The model in a folder with its refinement; ``factory`` is a class of transformers, AutoModelForCausalLM unless given.

    ``model.save_pretrained(folder)`` writes strengths among the weights and the kind into the configuration.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise StoreError(f"{folder} holds no config.json: give a folder that save_pretrained wrote")
    if factory is None:
        from transformers import AutoModelForCausalLM as factory
    model = _quietly(factory, folder, options)
    record = getattr(model.config, RECORD, None)
    if record is None:
        raise InputError(
            f"the model in {folder} was not refined when it was saved: from_pretrained and refine do the rest"
        )
    delattr(model.config, RECORD)
    refine(model, **record)
    saved = _strengths(folder)
    own = {name: value for name, value in model.named_parameters() if name.endswith(END)}
    with torch.no_grad():
        for name, parameter in own.items():
            # a head model's names have a prefix that the bare model's lack
            near = [key for key in saved if key == name or key.endswith("." + name) or name.endswith("." + key)]
            if len(near) != 1 or saved[near[0]].shape != parameter.shape:
                raise StoreError(f"the weights in {folder} have no strength for {name.removesuffix(END)}")
            parameter.copy_(saved[near[0]])
    return model


def _quietly(factory: Any, folder: Path, options: dict[str, Any]) -> Any:
    """The bare model, without a report that it does not know the strengths: they are read afterwards."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return factory.from_pretrained(folder, **options)
    finally:
        logging.set_verbosity(before)


def _strengths(folder: Path) -> dict[str, torch.Tensor]:
    """The refinement's tensors in all weight files."""
    from safetensors import safe_open

    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys() if name.endswith(END)}  # noqa: SIM118
    return found
