"""``attractor iterate --resume FILE``: the options that a stored run began with, where they are not given again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.cli.iterate import IterateModel, IterateOutput, IteratePasses, IteratePrompts

WHAT = ("model", "config", "layers", "dim", "heads")  # another model or type has other sizes
PROMPTS = ("text", "file", "random_prompts")  # given together


def request(
    model: IterateModel, prompts: IteratePrompts, passes: IteratePasses, texts: Sequence[str]
) -> dict[str, Any]:
    """The options of a run by name, ready for JSON; files as the texts that they held."""
    return asdict(model) | asdict(prompts) | asdict(passes) | {"text": list(texts) or None, "file": None}


def resumed(
    model: IterateModel, prompts: IteratePrompts, passes: IteratePasses, output: IterateOutput, named: dict[str, str]
) -> tuple[IterateModel, IteratePrompts, IteratePasses]:
    """The options of the run that goes on; those that are given stand, and a run that differs in them is refused when it is opened."""
    path = output.resume
    if path is None:
        return model, prompts, passes
    if output.out is not None:
        raise InputError("--resume goes on in its own file: leave out --out")
    if not path.is_file():
        raise InputError(f"--resume: there is no run in {path} to go on with; begin one with --out {path}")
    from attractor.checkpoints.iteration_store import request as stored

    asked, definition = stored(path)
    if not asked:  # an earlier version kept no more than this, and drew with the seed 42 where none was given
        same = ("feedforward", "final_norm", "redraw", "init", "seed", "dtype")
        asked = {name: definition[name] for name in same if name in definition}
        asked["dtype"] = str(asked.get("dtype", model.dtype)).removeprefix("torch.")
    kept = {name: value for name, value in asked.items() if name not in named}
    if "model" in named or "config" in named:
        kept = {name: value for name, value in kept.items() if name not in WHAT[: 2 if "config" in named else None]}
    if any(name in named for name in PROMPTS):
        kept = {name: value for name, value in kept.items() if name not in PROMPTS}
    return _with(model, kept), _with(prompts, kept), _with(passes, kept)


def _with(group: Any, kept: dict[str, Any]) -> Any:
    return replace(group, **{field.name: kept[field.name] for field in fields(group) if field.name in kept})
