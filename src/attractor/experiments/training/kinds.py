"""Entries of a configuration that are of the wrong kind: what a file or a shell may give."""

from __future__ import annotations

from typing import Any

from attractor.errors import InputError

AT_LEAST = {
    **dict.fromkeys(
        ("layers", "dim", "heads", "context", "patch", "steps", "batch", "accumulate", "evaluate", "checkpoint"), 1
    ),
    **dict.fromkeys(("vocabulary",), 1),
    **dict.fromkeys(("evaluations", "size", "warmup", "seed"), 0),
}
PERHAPS = {"hidden": 1, "turned": 1}  # left out, or at least so many
SWITCHES = ("spectral", "bias", "relaxed", "equal", "test", "compile")
NUMBERS = ("rate", "clip", "decay", "dropout", "drop_path", "smoothing", "final_rate")


def check_kinds(config: Any) -> None:
    """Refuse entries that are no number, no word, no list or no table where one is meant."""
    _check_counts(config)
    for name in SWITCHES:
        if not isinstance(getattr(config, name), bool):
            raise InputError(f"{name} must be true or false, got {getattr(config, name)!r}")
    for name in NUMBERS:
        if not _number(getattr(config, name)):
            raise InputError(f"{name} must be a number, got {getattr(config, name)!r}")
    if not 0 <= config.decay < float("inf"):
        raise InputError(f"decay must be a finite number of at least 0, got {config.decay!r}")
    for name in ("temperature", "gain"):
        value = getattr(config, name)
        if not _number(value) and value != "learned":
            raise InputError(f"{name} must be a number or 'learned', got {value!r}")
    if config.strength is not None and not _number(config.strength):
        raise InputError(f"strength must be a number, got {config.strength!r}")
    for name, needed in (("data", True), ("tokenizer", False), ("sign", False)):
        value = getattr(config, name)
        if not (isinstance(value, str) and value) and (needed or value is not None):
            raise InputError(f"{name} must be a text, got {value!r}")
    if not isinstance(config.options, dict):
        raise InputError(f"options must be a table such as {{scale = 0.1}}, got {config.options!r}")
    _check_lists(config)


def _check_counts(config: Any) -> None:
    for name, least in {**AT_LEAST, **PERHAPS}.items():
        value = getattr(config, name)
        if value is None and name in PERHAPS:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_lists(config: Any) -> None:
    if len(config.betas) != 2 or not all(_number(beta) and 0 <= beta < 1 for beta in config.betas):
        raise InputError(f"betas are two numbers from 0 to 1, such as [0.9, 0.95], got {list(config.betas)}")
    if not all(map(_number, config.split)):
        raise InputError(f"split is shares such as [0.9, 0.05, 0.05], got {list(config.split)}")
    if not all(isinstance(cutoff, int) and not isinstance(cutoff, bool) and cutoff > 0 for cutoff in config.cutoffs):
        raise InputError(f"cutoffs are whole numbers such as [2000, 10000], got {list(config.cutoffs)}")
    if not all(isinstance(name, str) for name in config.trackers):
        raise InputError(f"trackers are names such as ['tensorboard'], got {list(config.trackers)}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
