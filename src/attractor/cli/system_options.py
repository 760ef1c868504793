"""Options that define a system: tokens, law, space, integration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attractor.cli.inputs import read_array
from attractor.cli.options import panel, parse_numbers, seed_option
from attractor.errors import InputError
from attractor.laws import kernel_named, list_kernels
from attractor.registry import check_name

if TYPE_CHECKING:
    from torch import Tensor

    from attractor.laws import Attention
    from attractor.solvers import Noise, Redrawn
    from attractor.spaces import Space
    from attractor.states import Tokens

TOKENS, DIM = 64, 3
token_option = panel("Tokens")


@dataclass(frozen=True)
class TokenOptions:
    """The initial tokens."""

    tokens: Annotated[int | None, token_option("N", "Number of tokens.", "--tokens", "-n", default=str(TOKENS))] = None
    dim: Annotated[
        int | None, token_option("D", "Dimension of the tokens.", "--dim", "-d", default=f"that of the files, or {DIM}")
    ] = None
    start: Annotated[
        str,
        token_option(
            "NAME",
            "uniform (unit sphere), hemisphere, clusters:3,0.25, polygon, gaussian, ball, box, shell:0.8, ellipse:2,1, mixture:3, "
            "student:5, laplace or orthonormal (basis vectors).",
        ),
    ] = "uniform"
    spread: Annotated[
        float, token_option("X", "Factor of a start off the sphere; of gaussian, its standard deviation.")
    ] = 1.0
    seed: Annotated[int, seed_option("Seed of the random start.", "Tokens")] = 0
    ensemble: Annotated[int | None, token_option("E", "Number of independent starts that run together.", min=1)] = None
    tokens_file: Annotated[
        Path | None, token_option("FILE", "Start from these points, (..., n, d): .npy, .safetensors or .csv.")
    ] = None
    masses: Annotated[Path | None, token_option("FILE", "Masses of the tokens.", default="1/n each")] = None
    places: Annotated[
        Path | None, token_option("FILE", "Positions of the tokens in their sequence.", default="0, 1, 2, ...")
    ] = None
    device: Annotated[str, token_option("NAME", "Device: cpu, or cuda for an NVIDIA GPU.")] = "cpu"
    float32: Annotated[
        bool, token_option("", "Single precision: faster with many tokens, less accurate.", "--float32")
    ] = False


def to_device(tokens: Tokens, options: TokenOptions) -> Tokens:
    """Return the tokens on the device of ``--device``."""
    from attractor.memory import find_device
    from attractor.serialization import move_tensors

    return move_tensors(tokens, find_device(options.device))


def read_tokens(options: TokenOptions) -> Tokens | None:
    """Return the tokens of ``--tokens-file``, or None without it."""
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


def draw_tokens(options: TokenOptions, dim: int) -> Tokens:
    """Draw tokens from the distribution of ``--start``."""
    from attractor.states import UNIT, Tokens, list_starts

    n = TOKENS if options.tokens is None else options.tokens
    attributes = _attributes(options)
    known = (*list_starts(), "orthonormal")
    check_name(options.start.partition(":")[0], known, "--start", "starts")
    if options.start.partition(":")[0] in (*UNIT, "orthonormal") and options.spread != TokenOptions.spread:
        raise InputError(f"--spread does not belong to --start {options.start}, whose tokens have length one")
    if options.start == "orthonormal":
        if options.ensemble is not None:
            raise InputError("--start orthonormal is not random: leave out --ensemble")
        return Tokens.orthonormal(n if options.tokens is not None else min(n, dim), dim, **attributes)
    ensemble = () if options.ensemble is None else options.ensemble
    return Tokens.sample(options.start, n, dim, options.seed, options.spread, ensemble, **attributes)


def _attributes(options: TokenOptions) -> dict[str, Any]:
    """Return masses, positions and dtype, as Tokens takes them."""
    import torch

    rows = (("masses", options.masses, "--masses"), ("positions", options.places, "--places"))
    found = {name: _row(read_array(path, option)) for name, path, option in rows if path is not None}
    return {**found, "dtype": torch.float32 if options.float32 else None}


def _row(values: Any) -> Any:
    """Flatten a single row or column, which .csv files have in place of a list."""
    return values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values


BETA = 1.0
MATRICES = ("query", "key", "value")
FURTHER = ("output_projection", "query_bias", "key_bias", "value_bias", "output_bias")
KERNELS = [kernel.name for kernel in list_kernels()]
law_option = panel("Law")


def with_kernel_options(group: type[Any]) -> type[Any]:
    """The group with the options that kernels declare, right after ``kernel``; None or False where they are not given."""
    annotations = dict(group.__annotations__)
    names = list(annotations)
    after = names.index("kernel") + 1
    declared: dict[str, Any] = {}
    for owner in list_kernels():
        for name, part in owner.options().items():
            flag = isinstance(part.default, bool)
            spelled, shown = f"--{name.replace('_', '-')}", None if flag else f"{part.default:g}"
            typed = bool if flag else type(part.default) | None
            declared[name] = Annotated[
                typed, law_option("" if flag else "X", part.metadata["help"], spelled, default=shown)
            ]
            setattr(group, name, False if flag else None)
    group.__annotations__ = {
        **{name: annotations[name] for name in names[:after]},
        **declared,
        **{name: annotations[name] for name in names[after:]},
    }
    return group


@dataclass(frozen=True)
@with_kernel_options
class LawOptions:
    """The law."""

    beta: Annotated[float | None, law_option("X", "Isotropic attention: Q'K = beta I, V = I.", default=f"{BETA:g}")] = (
        None
    )
    query: Annotated[str | None, law_option("MATRIX", "Query, (k, d) or (h, k, d); with --key and --value.")] = None
    key: Annotated[str | None, law_option("MATRIX", "Key, of the same shape.")] = None
    value: Annotated[
        str | None,
        law_option(
            "MATRIX",
            "Value, (d, d) or (h, d, d); or (h, r, d) with --output-projection. Matrices are files, or rows such as 1,0;0,-1.",
        ),
    ] = None
    output_projection: Annotated[str | None, law_option("MATRIX", "Output projection, (h, d, r).")] = None
    query_bias: Annotated[str | None, law_option("VECTOR", "Bias of the queries, (k) or (h, k).")] = None
    key_bias: Annotated[str | None, law_option("VECTOR", "Bias of the keys, (k) or (h, k).")] = None
    value_bias: Annotated[str | None, law_option("VECTOR", "Bias of the values, (r) or (h, r).")] = None
    output_bias: Annotated[str | None, law_option("VECTOR", "Bias of the output, (d).")] = None
    random_law: Annotated[int | None, law_option("SEED", "Gaussian Q, K, V with entries of variance 1/d.", min=0)] = (
        None
    )
    heads: Annotated[int | None, law_option("H", "Heads of --random-law.", default="1", min=1)] = None
    head_dim: Annotated[
        int | None, law_option("K", "Rows of each query and key of --random-law.", default="d/h", min=1)
    ] = None
    kernel: Annotated[str, law_option("NAME", f"{', '.join(KERNELS[:-1])} or {KERNELS[-1]}.")] = "softmax"
    scale: Annotated[float, law_option("X", "Factor of every score.")] = 1.0
    mask: Annotated[str, law_option("MASK", "none, causal, window:W, or a .npy file with a boolean (n, n) matrix.")] = (
        "none"
    )
    positions: Annotated[str, law_option("NAME", "none, rotary, absolute, absolute,rotary, or alibi.")] = "none"
    theta: Annotated[float, law_option("X", "Base of the frequencies of positions.")] = 1e4
    rotary_dim: Annotated[
        int | None, law_option("N", "Coordinates of each head that rotary positions rotate.", default="all")
    ] = None
    slopes: Annotated[
        str | None,
        law_option("A,B,...", "Slopes of alibi positions, one for each head.", default="2^(-8i/h)"),
    ] = None
    position_table: Annotated[
        Path | None, law_option("FILE", "Table of absolute positions, (places, d).", default="sinusoidal")
    ] = None
    when: Annotated[
        str, law_option("WHEN", "Absolute positions are added at every evaluation, or at the input: every, input.")
    ] = "every"
    on: Annotated[
        str, law_option("WHAT", "Absolute positions shift queries, keys and values, or no values: qkv, qk.")
    ] = "qkv"


def read_law(options: LawOptions) -> dict[str, Any]:
    """Return the matrices of the law that are given, by their names in Attention."""
    given = [name for name in MATRICES if getattr(options, name) is not None]
    further = [name for name in FURTHER if getattr(options, name) is not None]
    if (given or further) and len(given) < 3:
        absent = " and ".join(f"--{name}" for name in MATRICES if name not in given)
        raise InputError(f"a law of matrices needs --query, --key and --value: give {absent} too")
    ways = [option for option, used in (("--query", bool(given)), ("--beta", options.beta is not None),
                                        ("--random-law", options.random_law is not None)) if used]  # fmt: skip
    if len(ways) > 1:
        raise InputError(f"{' and '.join(ways)} are different laws: give one of them")
    if options.random_law is None and (options.heads is not None or options.head_dim is not None):
        raise InputError("--heads and --head-dim shape a random law: give --random-law SEED too")
    names = {name: name.removesuffix("_projection") for name in (*given, *further)}
    parts = {names[name]: read_array(Path(getattr(options, name)), f"--{name.replace('_', '-')}") for name in names}
    biases = [name for name in parts if name.endswith("_bias")]
    for name in biases:  # one row is a vector, of one head or of all
        rows = parts[name]
        parts[name] = rows.reshape(-1) if name == "output_bias" or len(rows) == 1 else rows
    return parts


def build_law(options: LawOptions, matrices: dict[str, Any], dim: int, n: int) -> Attention:
    """Build the law for n tokens of dimension dim."""
    from attractor.laws import Attention

    shape: dict[str, Any] = {"kernel": _kernel(options), "mask": _mask(options.mask), "scale": options.scale}
    heads = len(matrices["query"]) if matrices and matrices["query"].ndim == 3 else options.heads or 1
    shape["positions"] = _positions(options, dim, n, heads)
    if matrices:
        return Attention(**matrices, **shape)
    if options.random_law is not None:
        return Attention.random(dim, options.heads or 1, options.head_dim, options.random_law, **shape)
    return Attention.isotropic(dim, BETA if options.beta is None else options.beta, **shape)


def _kernel(options: LawOptions) -> Any:
    kernel = kernel_named(options.kernel)
    given = {}
    for owner in list_kernels():
        for name in owner.options():
            value = getattr(options, name, None)
            if value is None or value is False:
                continue
            if name not in kernel.options():
                raise InputError(f"--{name.replace('_', '-')} belongs to --kernel {owner.name}, not to {kernel.name}")
            given[name] = value
    return replace(kernel, **given) if given else kernel  # type: ignore[type-var]


def _mask(mask: str) -> Any:
    if mask in ("none", "causal") or (mask.startswith("window:") and mask.removeprefix("window:").isdigit()):
        return mask
    if not mask.endswith(".npy"):
        raise InputError(f"--mask {mask!r} is not known; give none, causal, window:W such as window:64, or a .npy file")
    matrix = read_array(Path(mask), "--mask")
    return matrix if matrix.dtype.is_floating_point is False else matrix != 0


def _positions(options: LawOptions, dim: int, n: int, heads: int) -> Any:
    from attractor.laws import Absolute, Alibi, Rotary

    names = [name.strip() for name in options.positions.split(",")]
    known = (["none"], ["rotary"], ["absolute"], ["absolute", "rotary"], ["rotary", "absolute"], ["alibi"])
    if names not in known:
        raise InputError(
            f"--positions {options.positions!r} is not known; give none, rotary, absolute, absolute,rotary or alibi"
        )
    if "alibi" not in names and options.slopes is not None:
        raise InputError("--slopes belong to --positions alibi")
    if "absolute" not in names and options.position_table is not None:
        raise InputError("--position-table belongs to --positions absolute")
    if "rotary" not in names and options.rotary_dim is not None:
        raise InputError("--rotary-dim belongs to --positions rotary")
    if "absolute" not in names and (options.when, options.on) != (LawOptions.when, LawOptions.on):
        raise InputError("--when and --on belong to --positions absolute")
    if names in (["none"], ["alibi"]) and options.theta != LawOptions.theta:
        raise InputError("--theta belongs to --positions rotary or absolute")
    if names == ["alibi"]:
        return Alibi.usual(heads) if options.slopes is None else Alibi(parse_numbers(options.slopes, "--slopes"))  # type: ignore[arg-type]
    encodings: list[Any] = []
    if "absolute" in names:
        path, settings = options.position_table, {"when": options.when, "on": options.on}
        if path is None:
            encodings.append(Absolute.sinusoidal(n, dim, options.theta, **settings))
        else:
            encodings.append(Absolute(read_array(path, "--position-table"), **settings))  # type: ignore[arg-type]
    if "rotary" in names:
        encodings.append(Rotary(options.theta, options.rotary_dim))
    return encodings


space_option = panel("Space")


@dataclass(frozen=True)
class SpaceOptions:
    """The space."""

    space: Annotated[str, space_option("NAME", "euclidean, sphere or ellipsoid.")] = "euclidean"
    radius: Annotated[float | None, space_option("X", "Radius of the sphere.", default="1")] = None
    ellipsoid: Annotated[Path | None, space_option("FILE", "Matrix W of the ellipsoid {x : x'Wx = 1}.")] = None
    axes: Annotated[str | None, space_option("A,B,...", "Half axes of the ellipsoid, such as 1,2,4.")] = None


def build_space(options: SpaceOptions) -> Space:
    """Build the space."""
    import torch

    from attractor.spaces import Ellipsoid, Euclidean, Sphere

    if options.radius is not None and options.space != "sphere":
        raise InputError(f"--radius belongs to --space sphere, not to {options.space}")
    if (options.ellipsoid is not None or options.axes is not None) and options.space != "ellipsoid":
        raise InputError("--ellipsoid and --axes describe an ellipsoid: give --space ellipsoid too")
    if options.space == "sphere":
        return Sphere() if options.radius is None else Sphere(options.radius)
    check_name(options.space, ("euclidean", "sphere", "ellipsoid"), "--space", "spaces")
    if options.space == "euclidean":
        return Euclidean()
    if (options.ellipsoid is None) == (options.axes is None):
        raise InputError(
            "--space ellipsoid needs --ellipsoid FILE (its matrix) or --axes A,B,... (its half axes), one of them"
        )
    if options.ellipsoid is not None:
        return Ellipsoid(read_array(options.ellipsoid, "--ellipsoid"))
    axes = torch.tensor(parse_numbers(options.axes or "", "--axes"), dtype=torch.float64)
    if not len(axes) or bool((axes <= 0).any()):
        raise InputError(f"--axes must be positive lengths, one for each dimension, got {options.axes}")
    return Ellipsoid(torch.diag(axes**-2.0))


noise_option = panel("Noise")


@dataclass(frozen=True)
class NoiseOptions:
    """The random part of the motion."""

    noise: Annotated[
        float | None,
        noise_option(
            "X", "Strength: independent Brownian motion of variance 2 X t in each direction; with --step.", min=0
        ),
    ] = None
    common_noise: Annotated[
        float | None, noise_option("X", "Strength of noise that all tokens share.", default="0", min=0)
    ] = None
    noise_kind: Annotated[
        str, noise_option("NAME", "space: Brownian motion of its metric; layer: added before normalization.")
    ] = "space"
    redrawn: Annotated[
        float | None, noise_option("X", "Redraw the values in every step, with this standard deviation.", min=0)
    ] = None
    noise_seed: Annotated[int, noise_option("N", "Seed of the noise.", min=0)] = 0


def build_noise(options: NoiseOptions) -> Noise | Redrawn | None:
    """Build the noise, or return None if there is none."""
    from attractor.solvers import Noise, Redrawn

    given = options.noise is not None or options.common_noise is not None
    if options.redrawn is not None:
        if given:
            raise InputError("--redrawn and --noise or --common-noise exclude each other: give one of them")
        return Redrawn(options.redrawn, options.noise_seed)
    if not given:
        if options.noise_kind != "space" or options.noise_seed != 0:
            raise InputError("--noise-kind and --noise-seed belong to --noise, which is not given")
        return None
    return Noise(options.noise or 0.0, options.common_noise or 0.0, kind=options.noise_kind, seed=options.noise_seed)


UNTIL = 10.0
run_option = panel("Flow")


@dataclass(frozen=True)
class RunOptions:
    """The integration."""

    until: Annotated[
        float | None,
        run_option("T", "Final time.", "--until", "-t", default=f"the last of --save, or {UNTIL:g}"),
    ] = None
    log_until: Annotated[
        float | None,
        run_option(
            "L",
            "Final time e^L; beyond e^690 clusters on the sphere are followed in logarithmic time. --save then lists logarithms.",
            "--log-until",
        ),
    ] = None
    save: Annotated[
        str | None,
        run_option(
            "K|T,T,...", "Save the ends of K equal intervals, or these times.", default="a grid chosen from --until"
        ),
    ] = None
    method: Annotated[
        str | None,
        run_option(
            "NAME",
            "dop853, dopri5 (adaptive); radau9, radau5 (for stiff systems); rk4, euler (with --step); layers; clusters (log time).",
            default="by --rtol",
        ),
    ] = None
    rtol: Annotated[float | None, run_option("X", "Relative error of a step.", default="1e-8; float32 1e-5")] = None
    atol: Annotated[float | None, run_option("X", "Absolute error of a step.", default="1e-10; float32 1e-7")] = None
    step: Annotated[float | None, run_option("H", "The step of a fixed method, or the first of an adaptive one.")] = (
        None
    )
    fixed_step: Annotated[
        bool, run_option("", "Use --step as a fixed step in an adaptive method too.", "--fixed-step")
    ] = False
    merge: Annotated[
        str | None,
        run_option("TOL|off", "Merge tokens closer than this.", default="a tenth of --rtol where that is exact"),
    ] = None
    stop: Annotated[
        str | None,
        run_option(
            "RULE,...",
            "Conditions that end the run early: consensus, collapsed, steady; or none.",
            default="depends on the space",
        ),
    ] = None
    max_seconds: Annotated[float | None, run_option("S", "Stop after this many seconds.", min=0)] = None
    max_evaluations: Annotated[int | None, run_option("N", "Stop after this many evaluations of the law.", min=1)] = (
        None
    )
    full_dimension: Annotated[
        bool,
        run_option(
            "", "Integrate all coordinates, also where tokens stay in the span of their start.", "--full-dimension"
        ),
    ] = False
    engine: Annotated[
        str | None,
        run_option("NAME", "Engine of attention; see attractor doctor.", default="the fastest one available"),
    ] = None


def flow_options(options: RunOptions) -> dict[str, Any]:
    """Return the keyword arguments of flow."""
    from attractor.solvers import LogTime

    if options.until is not None and options.until <= 0:
        raise InputError(f"--until {options.until:g} is not after the start at t = 0: give a positive time")
    save = _save(options.save)
    if options.log_until is not None and options.until is not None:
        raise InputError("--until and --log-until both give the final time: leave out one of them")
    if options.log_until is not None:
        until: Any = LogTime(options.log_until)
        save = [LogTime(time) for time in save] if isinstance(save, list) else save
    # the last of explicit save times is the final time
    else:
        until = UNTIL if options.until is None and not isinstance(save, list) else options.until
    return {
        "until": until,
        "save": save,
        "method": options.method,
        "rtol": options.rtol,
        "atol": options.atol,
        "step": options.step,
        "adaptive": not options.fixed_step,
        "merge": _merge(options.merge),
        "stop": _stop(options.stop),
        "max_seconds": options.max_seconds,
        "max_evaluations": options.max_evaluations,
        "engine": options.engine,
        "reduce": False if options.full_dimension else None,
    }


def _save(text: str | None) -> int | list[float] | None:
    if text is None:
        return None
    if text.strip().lstrip("+-").isdigit():
        return int(text)
    times = parse_numbers(text, "--save")
    if not times or "," not in text:
        raise InputError(f"--save must be a whole number of intervals or a list of times such as 0,1,10, got {text!r}")
    return times


def _merge(text: str | None) -> float | bool | None:
    if text is None or text == "auto":
        return None
    if text == "off":
        return False
    try:
        tolerance = float(text)
    except ValueError:
        raise InputError(f"--merge must be a distance such as 1e-3, or off, got {text!r}") from None
    if not 0 < tolerance < float("inf"):
        raise InputError(f"--merge must be a positive distance such as 1e-3, or off, got {text}")
    return tolerance


def _stop(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [] if names in ([], ["none"]) else names


def read_vector(text: str, option: str) -> Tensor:
    """Return numbers separated by commas, or those in a file: (d)."""
    array = read_array(Path(text), option)
    return array.reshape(-1) if array.ndim == 2 and 1 in array.shape else array
