"""Which parameters decay, and where a number that is not finite arose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

UNDECAYED = ("pivots", "lower", "skew", "theta")  # signs and strengths that weight decay must not pull at


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay; vectors, signs and strengths without."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[parameter.ndim > 1 and name.rpartition(".")[2] not in UNDECAYED].append(parameter)
    return [{"params": groups[True], "weight_decay": decay}, {"params": groups[False], "weight_decay": 0.0}]


def first_bad(model: nn.Module, batch: tuple[Tensor, ...]) -> str:
    """Where a number that is not finite first arises: a parameter, the output of a module, or a gradient."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"the parameter {name}"
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not found and not bool(output.isfinite().all()):
                found.append(f"the output of {name or 'the model'}")

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    with torch.no_grad():
        model(*batch)
    for handle in handles:
        handle.remove()
    if found:
        return found[0]
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return f"the gradient of {name}"
    return "the backward pass"
