"""The rotary positions that a configuration describes."""

from __future__ import annotations

from typing import Any

from attractor.attention import Rotary, ScaledRotary
from attractor.checkpoints.assembly import Turning
from attractor.checkpoints.precision import double
from attractor.errors import UnsupportedError


def turning(config: Any, head_dim: int, layer_type: str | None = None, halves: bool = True) -> Turning | None:
    """How a layer turns queries and keys, or None where it does not.

    The usual angles are ours; those of scaled contexts (linear, Llama 3, YaRN, ...) are computed by transformers, in float64.
    """
    settings = rope_settings(config, layer_type)
    if settings is None:
        return None
    kind, theta = settings.get("rope_type", "default"), float(settings["rope_theta"])
    if kind == "default":
        turned = int(head_dim * settings.get("partial_rotary_factor", 1.0))
        return Turning(Rotary(theta, turned), turned, halves)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise UnsupportedError(
            f"rotary positions of type {kind!r} are not known; transformers knows {', '.join(sorted(ROPE_INIT_FUNCTIONS))}"
        )
    options = {} if layer_type is None else {"layer_type": layer_type}
    with double():
        angles, factor = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", **options)
    rotary = ScaledRotary(theta, angles=tuple(angles.double().tolist()))
    return Turning(rotary, 2 * len(angles), halves, float(factor))


def rope_settings(config: Any, layer_type: str | None = None) -> dict[str, Any] | None:
    """The rotary settings of a layer type, or of all layers."""
    settings = getattr(config, "rope_parameters", None)
    if settings is None or "rope_theta" in settings:
        return settings
    return settings.get(layer_type)


def long_context(config: Any, layer_type: str | None = None) -> tuple[str, ...]:
    """What must be said about angles that depend on the length of the text."""
    settings = rope_settings(config, layer_type) or {}
    if settings.get("rope_type") in ("dynamic", "longrope"):
        return ("rotary angles are those of texts within the original context; longer texts change them",)
    return ()
