"""Options that say where tokens move."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attractor.cli.files import read_array
from attractor.cli.groups import numbers, panel
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.spaces import Space

option = panel("Space")


@dataclass(frozen=True)
class SpaceOptions:
    """Where they move."""

    space: Annotated[str, option("NAME", "euclidean, sphere or ellipsoid.")] = "euclidean"
    radius: Annotated[float | None, option("X", "Radius of the sphere.", default="1")] = None
    ellipsoid: Annotated[Path | None, option("FILE", "Matrix W of the ellipsoid {x : x'Wx = 1}.")] = None
    axes: Annotated[str | None, option("A,B,...", "Half axes of the ellipsoid, such as 1,2,4.")] = None


def build_space(options: SpaceOptions) -> Space:
    """The space the options ask for."""
    import torch

    from attractor.spaces import Ellipsoid, Sphere, space_named

    if options.radius is not None and options.space != "sphere":
        raise InputError(f"--radius belongs to --space sphere, not to {options.space}")
    if (options.ellipsoid is not None or options.axes is not None) and options.space != "ellipsoid":
        raise InputError("--ellipsoid and --axes describe an ellipsoid: give --space ellipsoid too")
    if options.space == "sphere":
        return Sphere() if options.radius is None else Sphere(options.radius)
    if options.space != "ellipsoid":
        if options.space != "euclidean":
            raise InputError(f"--space {options.space!r} is not known; give euclidean, sphere or ellipsoid")
        return space_named(options.space)
    if (options.ellipsoid is None) == (options.axes is None):
        raise InputError(
            "--space ellipsoid needs --ellipsoid FILE (its matrix) or --axes A,B,... (its half axes), one of them"
        )
    if options.ellipsoid is not None:
        return Ellipsoid(read_array(options.ellipsoid, "--ellipsoid"))
    axes = torch.tensor(numbers(options.axes or "", "--axes"), dtype=torch.float64)
    if not len(axes) or bool((axes <= 0).any()):
        raise InputError(f"--axes must be positive lengths, one for each dimension, got {options.axes}")
    return Ellipsoid(torch.diag(axes**-2.0))
