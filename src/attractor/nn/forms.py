"""Weights that say which form they are of: the same numbers of another form would fit in shape and mean something else.

The form is a name such as "slice of sign '+'", kept beside the weights as a buffer of its letters, so that it travels with every
way of saving tensors. Weights without one, as earlier versions wrote them, are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attractor.errors import InputError

LETTERS = "form_letters"


class Formed(nn.Module):
    """A module with a ``form``; a subclass calls ``mark_form`` when its form is known."""

    @property
    def form(self) -> str:
        raise NotImplementedError

    def mark_form(self) -> None:
        """Keep the form beside the weights."""
        self.register_buffer(LETTERS, torch.tensor(list(self.form.encode()), dtype=torch.uint8))

    def check_form(self, state: Mapping[str, Any], prefix: str) -> None:
        """Refuse weights that say to be of another form."""
        given = state.get(prefix + LETTERS)
        if not isinstance(given, Tensor) or given.is_meta:
            return
        other = bytes(given.flatten().to(torch.uint8).tolist()).decode(errors="replace")
        if other != self.form:
            raise InputError(
                f"the weights are of a {other} and this is a {self.form}: they fit in shape and mean something else; make the layer "
                "with the form that they were trained with"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **options: Any) -> None:
        self.check_form(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **options)
        missing = options["missing_keys"] if "missing_keys" in options else args[2]  # torch gives them by place
        if prefix + LETTERS in missing:
            missing.remove(prefix + LETTERS)


def check_forms(module: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
    """Refuse weights of another form for any part of a module, before one of them is copied."""
    for name, part in module.named_modules(prefix=prefix.removesuffix(".")):
        if isinstance(part, Formed):
            part.check_form(state, name + "." if name else "")
