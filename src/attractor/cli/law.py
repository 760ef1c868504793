"""Options that say which law moves the tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attractor.cli.files import read_array
from attractor.cli.groups import panel
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.attention import Attention

BETA = 1.0
MATRICES = ("query", "key", "value")
FURTHER = ("output_projection", "query_bias", "key_bias", "value_bias", "output_bias")
option = panel("Law")


@dataclass(frozen=True)
class LawOptions:
    """Which law moves the tokens."""

    beta: Annotated[float | None, option("X", "Isotropic attention: Q'K = beta I, V = I.", default=f"{BETA:g}")] = None
    query: Annotated[Path | None, option("FILE", "Query, (k, d) or (h, k, d); with --key and --value.")] = None
    key: Annotated[Path | None, option("FILE", "Key, of the same shape.")] = None
    value: Annotated[
        Path | None, option("FILE", "Value, (d, d) or (h, d, d); or (h, r, d) with --output-projection.")
    ] = None
    output_projection: Annotated[Path | None, option("FILE", "Output projection, (h, d, r).")] = None
    query_bias: Annotated[Path | None, option("FILE", "Bias of the queries, (k) or (h, k).")] = None
    key_bias: Annotated[Path | None, option("FILE", "Bias of the keys, (k) or (h, k).")] = None
    value_bias: Annotated[Path | None, option("FILE", "Bias of the values, (r) or (h, r).")] = None
    output_bias: Annotated[Path | None, option("FILE", "Bias of the output, (d).")] = None
    random_law: Annotated[int | None, option("SEED", "Gaussian Q, K, V with entries of variance 1/d.", min=0)] = None
    heads: Annotated[int | None, option("H", "Heads of --random-law.", default="1", min=1)] = None
    head_dim: Annotated[
        int | None, option("K", "Rows of each query and key of --random-law.", default="d/h", min=1)
    ] = None
    kernel: Annotated[str, option("NAME", "softmax, l2, sinkhorn, sigmoid, exponential, linear or capped.")] = "softmax"
    eps: Annotated[float | None, option("X", "Regularisation of --kernel sinkhorn.", default="1")] = None
    bias: Annotated[float | None, option("X", "Bias of every score of --kernel sigmoid.", default="0")] = None
    cap: Annotated[float | None, option("X", "What scores of --kernel capped stay below.", default="50")] = None
    scale: Annotated[float, option("X", "Factor of every score.")] = 1.0
    mask: Annotated[str, option("MASK", "none, causal, window:W, or a .npy file with a boolean (n, n) matrix.")] = (
        "none"
    )
    positions: Annotated[str, option("NAME", "none, rotary or absolute.")] = "none"
    theta: Annotated[float, option("X", "Base of the frequencies of positions.")] = 1e4
    rotary_dim: Annotated[
        int | None, option("N", "Coordinates of each head that rotary positions turn.", default="all")
    ] = None
    position_table: Annotated[
        Path | None, option("FILE", "Table of absolute positions, (places, d).", default="sinusoidal")
    ] = None
    when: Annotated[
        str, option("WHEN", "Absolute positions are added at every evaluation, or at the input: every, input.")
    ] = "every"
    on: Annotated[str, option("WHAT", "Absolute positions shift queries, keys and values, or no values: qkv, qk.")] = (
        "qkv"
    )


def read_law(options: LawOptions) -> dict[str, Any]:
    """Matrices of the law that come from files, by the names Attention has for them."""
    given = [name for name in MATRICES if getattr(options, name) is not None]
    further = [name for name in FURTHER if getattr(options, name) is not None]
    if (given or further) and len(given) < 3:
        absent = " and ".join(f"--{name}" for name in MATRICES if name not in given)
        raise InputError(f"a law from files needs --query, --key and --value: give {absent} too")
    ways = [option for option, used in (("--query", bool(given)), ("--beta", options.beta is not None),
                                        ("--random-law", options.random_law is not None)) if used]  # fmt: skip
    if len(ways) > 1:
        raise InputError(f"{' and '.join(ways)} are different laws: give one of them")
    if options.random_law is None and (options.heads is not None or options.head_dim is not None):
        raise InputError("--heads and --head-dim shape a random law: give --random-law SEED too")
    names = {name: name.removesuffix("_projection") for name in (*given, *further)}
    parts = {names[name]: read_array(getattr(options, name), f"--{name.replace('_', '-')}") for name in names}
    return {name: part.reshape(-1) if name == "output_bias" else part for name, part in parts.items()}


def build_law(options: LawOptions, matrices: dict[str, Any], dim: int, n: int) -> Attention:
    """The law the options ask for, for n tokens of dimension dim."""
    from attractor.attention import Attention

    shape: dict[str, Any] = {"kernel": _kernel(options), "mask": _mask(options.mask), "scale": options.scale}
    shape["positions"] = _positions(options, dim, n)
    if matrices:
        return Attention(**matrices, **shape)
    if options.random_law is not None:
        return Attention.random(dim, options.heads or 1, options.head_dim, options.random_law, **shape)
    return Attention.isotropic(dim, BETA if options.beta is None else options.beta, **shape)


def _kernel(options: LawOptions) -> Any:
    from attractor.attention.kernels import kernel_named

    kernel: Any = kernel_named(options.kernel)
    for name, owner in (("eps", "sinkhorn"), ("bias", "sigmoid"), ("cap", "capped")):
        value = getattr(options, name)
        if value is None:
            continue
        if name not in {field.name for field in fields(kernel)}:
            raise InputError(f"--{name} belongs to --kernel {owner}, not to {kernel.name}")
        kernel = replace(kernel, **{name: value})
    return kernel


def _mask(mask: str) -> Any:
    if not mask.endswith(".npy"):
        return mask
    matrix = read_array(Path(mask), "--mask")
    return matrix if matrix.dtype.is_floating_point is False else matrix != 0


def _positions(options: LawOptions, dim: int, n: int) -> Any:
    from attractor.attention import Absolute, Rotary

    if options.positions != "absolute" and options.position_table is not None:
        raise InputError("--position-table belongs to --positions absolute")
    if options.positions != "rotary" and options.rotary_dim is not None:
        raise InputError("--rotary-dim belongs to --positions rotary")
    if options.positions != "absolute" and (options.when, options.on) != (LawOptions.when, LawOptions.on):
        raise InputError("--when and --on belong to --positions absolute")
    if options.positions == "none" and options.theta != LawOptions.theta:
        raise InputError("--theta belongs to --positions rotary or absolute")
    if options.positions == "none":
        return None
    if options.positions == "rotary":
        return Rotary(options.theta, options.rotary_dim)
    if options.positions == "absolute":
        path = options.position_table
        if path is None:
            return Absolute.sinusoidal(n, dim, options.theta, when=options.when, on=options.on)
        return Absolute(read_array(path, "--position-table"), when=options.when, on=options.on)  # type: ignore[arg-type]
    raise InputError(f"--positions {options.positions!r} is not known; give none, rotary or absolute")
