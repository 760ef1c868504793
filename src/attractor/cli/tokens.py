"""Options that say what moves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attractor.cli.files import read_array
from attractor.cli.groups import panel
from attractor.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from attractor.states import Tokens

TOKENS, DIM = 64, 3
option = panel("Tokens")


@dataclass(frozen=True)
class TokenOptions:
    """What moves."""

    tokens: Annotated[int | None, option("N", "How many tokens.", "--tokens", "-n", default=str(TOKENS))] = None
    dim: Annotated[
        int | None, option("D", "Their dimension.", "--dim", "-d", default=f"that of the files, or {DIM}")
    ] = None
    start: Annotated[
        str,
        option(
            "NAME",
            "uniform (unit sphere), hemisphere, gaussian, ball, box, shell:0.8, ellipse:2,1, mixture:3, student:5, laplace or "
            "orthonormal (basis vectors).",
        ),
    ] = "uniform"
    spread: Annotated[float, option("X", "Factor of a start off the sphere; of gaussian, its standard deviation.")] = (
        1.0
    )
    seed: Annotated[int, option("N", "Seed of the random start.", min=0)] = 0
    ensemble: Annotated[int | None, option("E", "How many independent starts to run at once.", min=1)] = None
    tokens_file: Annotated[
        Path | None, option("FILE", "Start from these points, (..., n, d): .npy, .safetensors or .csv.")
    ] = None
    masses: Annotated[Path | None, option("FILE", "Masses of the tokens.", default="1/n each")] = None
    places: Annotated[
        Path | None, option("FILE", "Positions of the tokens in their sequence.", default="0, 1, 2, ...")
    ] = None
    device: Annotated[str, option("NAME", "Where to compute: cpu, or cuda for an NVIDIA GPU.")] = "cpu"
    float32: Annotated[
        bool, option("", "Single precision: faster with many tokens, and blind to small rates.", "--float32")
    ] = False


def sent(tokens: Tokens, options: TokenOptions) -> Tokens:
    """The tokens where they are to be moved."""
    import torch

    from attractor.records import moved

    try:
        device = torch.device(options.device)
    except RuntimeError:
        raise InputError(f"--device {options.device!r} is not known; give cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(
            f"--device {options.device}: no GPU is found here, or this PyTorch is built without CUDA"
        )
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {options.device!r} is not known; give cpu or cuda")
    return moved(tokens, device)


def read_tokens(options: TokenOptions) -> Tokens | None:
    """The tokens of a file, or None if they are to be drawn at random."""
    from attractor.states import Tokens

    if options.tokens_file is None:
        return None
    if options.ensemble is not None:
        raise InputError(
            "--ensemble is for random starts; with --tokens-file give points of shape (ensemble, n, d) instead"
        )
    tokens = Tokens(read_array(options.tokens_file, "--tokens-file"), **_attributes(options))
    for option, asked, found in (("--tokens", options.tokens, tokens.n), ("--dim", options.dim, tokens.dim)):
        if asked is not None and asked != found:
            raise InputError(
                f"{option} {asked} does not fit {options.tokens_file}, which holds {tokens.n} tokens of dimension {tokens.dim}"
            )
    return tokens


def random_tokens(options: TokenOptions, dim: int) -> Tokens:
    """Tokens as --start asks."""
    from attractor.states import Tokens
    from attractor.states.starts import UNIT, drawn, starts

    n = TOKENS if options.tokens is None else options.tokens
    attributes = _attributes(options)
    known = (*starts(), "orthonormal")
    if options.start.partition(":")[0] not in known:
        raise InputError(f"--start {options.start!r} is not known; the starts are {', '.join(known)}")
    if options.start in (*UNIT, "orthonormal") and options.spread != TokenOptions.spread:
        raise InputError(f"--spread does not belong to --start {options.start}, whose tokens have length one")
    if options.start == "orthonormal":
        if options.ensemble is not None:
            raise InputError("--start orthonormal has nothing random in it: leave --ensemble out")
        return Tokens.orthonormal(n if options.tokens is not None else min(n, dim), dim, **attributes)
    ensemble = () if options.ensemble is None else options.ensemble
    return drawn(options.start, n, dim, options.seed, options.spread, ensemble, **attributes)


def _attributes(options: TokenOptions) -> dict[str, Any]:
    """Masses, positions and precision, as Tokens takes them."""
    import torch

    rows = (("masses", options.masses, "--masses"), ("positions", options.places, "--places"))
    found = {name: _row(read_array(path, option)) for name, path, option in rows if path is not None}
    return {**found, "dtype": torch.float32 if options.float32 else None}


def _row(values: Any) -> Any:
    """A .csv file has rows and columns even where a list is meant."""
    return values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values
