"""Descriptions of systems: JSON objects from which a law, tokens, a space and a run are built.

The page of ``attractor explore`` keeps its state in such an object, puts it into its address and sends it to the server. From it the same
run is written as a command line (:meth:`System.command`) and as a program (:meth:`System.python`).
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError
from attractor.registry import check_name

if TYPE_CHECKING:
    from attractor.laws import Attention
    from attractor.solvers import Noise, Trajectory
    from attractor.spaces import Space
    from attractor.states import Tokens

SCHEMA = "attractor.system/1"
Matrix = tuple[tuple[float, ...], ...]
RTOL, ATOL = 1e-8, 1e-10  # defaults of flow
RULES = ("consensus", "collapsed", "steady")
LONGEST_WORD = 100_000  # characters of one argument; Linux takes 131,071
LONGEST_LINE = 1_000_000  # characters of a command line


@dataclass(frozen=True)
class Start:
    """Tokens at the beginning: drawn from a named measure (``kind``, as ``--start``), or given (``points``)."""

    kind: str = "uniform"
    tokens: int = 64
    seed: int = 0
    spread: float = 1.0
    points: Matrix | None = None


@dataclass(frozen=True)
class Head:
    """Matrices of one head; None stands for the identity. Scores are ``beta <query x_i, key x_j>``."""

    key: Matrix | None = None
    value: Matrix | None = None
    query: Matrix | None = None


@dataclass(frozen=True)
class System:
    """A system of tokens under attention, and the run that is asked for.

    Attributes
    ----------
    start : the tokens at the beginning.
    dim : dimension of the tokens.
    space : "euclidean", "sphere", or the matrix W of an ellipsoid {x : x'Wx = 1}.
    masses : one for each token; None for 1/n each.
    kernel, kernel_options : name of the kernel and its parameters, as on the command line.
    beta : factor of every score.
    heads : matrices of every head.
    mask : "none", "causal" or "window:W".
    theta : base of the frequencies of rotary positions; None without positions.
    noise, noise_seed : strength of independent noise; needs ``step`` or ``layers``.
    layers : size of discrete layers; None for continuous time.
    step : step of a run with noise in continuous time.
    until : final time.
    stop : rules that end the run early, by default none.
    rtol, atol : as in ``flow``; of no meaning with noise and for layers, whose steps are fixed.
    merge : distance below which tokens merge; None for the choice of ``flow``, 0 to merge none; of no meaning for fixed steps.
    reverse : whether time runs backwards: all values change their sign.
    """

    start: Start = field(default_factory=Start)
    dim: int = 3
    space: str | Matrix = "sphere"
    masses: tuple[float, ...] | None = None
    kernel: str = "softmax"
    kernel_options: Mapping[str, Any] = field(default_factory=dict)
    beta: float = 1.0
    heads: tuple[Head, ...] = (Head(),)
    mask: str = "none"
    theta: float | None = None
    noise: float = 0.0
    noise_seed: int = 0
    layers: float | None = None
    step: float | None = None
    until: float = 10.0
    rtol: float = RTOL
    atol: float = ATOL
    merge: float | None = None
    stop: tuple[str, ...] = ()
    reverse: bool = False

    def __post_init__(self) -> None:
        _check_system(self)

    # ------------------------------------------------------------------ JSON

    @classmethod
    def from_json(cls, document: Any) -> System:
        """Read a description; raises InputError, one sentence, for what it does not allow."""
        return _read(document)

    def to_json(self) -> dict[str, Any]:
        """Return the description, from which ``from_json`` builds the same system."""
        return {
            "schema": SCHEMA,
            "space": self.space if isinstance(self.space, str) else {"ellipsoid": _lists(self.space)},
            "dim": self.dim,
            "start": _start_row(self.start),
            "masses": None if self.masses is None else list(self.masses),
            "kernel": self.kernel,
            "kernel_options": dict(self.kernel_options),
            "beta": self.beta,
            "heads": [_head_row(head) for head in self.heads],
            "mask": _mask_row(self.mask),
            "positions": None if self.theta is None else {"rotary": self.theta},
            "noise": self.noise,
            "noise_seed": self.noise_seed,
            "layers": self.layers,
            "step": self.step,
            "until": self.until,
            "rtol": self.rtol,
            "atol": self.atol,
            "merge": self.merge,
            "stop": list(self.stop),
            "reverse": self.reverse,
        }

    # ------------------------------------------------------------------ what a run needs

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.start.tokens if self.start.points is None else len(self.start.points)

    @property
    def is_isotropic(self) -> bool:
        """Whether the law is ``Attention.isotropic(dim, beta)``: one head of identities."""
        return self.heads == (Head(),) and not self.reverse

    def law(self) -> Attention:
        """Build the law."""
        from attractor.laws import Attention, Rotary

        options: dict[str, Any] = {"kernel": self._build_kernel()}
        options |= {} if self.mask == "none" else {"mask": self.mask}
        options |= {} if self.theta is None else {"positions": Rotary(self.theta)}
        if self.is_isotropic:
            return Attention.isotropic(self.dim, self.beta, **options)
        parts = {name: self.matrices(name) for name in ("query", "key", "value")}
        parts = {name: part[0] if len(part) == 1 else part for name, part in parts.items()}
        return Attention(**parts, scale=self.beta, **options)  # type: ignore[arg-type]

    def _build_kernel(self) -> Any:
        from attractor.laws import kernel_named

        kernel = kernel_named(self.kernel)
        return replace(kernel, **self.kernel_options) if self.kernel_options else kernel  # type: ignore[type-var]

    def matrices(self, name: str) -> list[Matrix]:
        """Return the query, key or value of every head; values have the sign that ``reverse`` gives them."""
        found = [getattr(head, name) for head in self.heads]
        found = [_identity(self.dim) if matrix is None else matrix for matrix in found]
        if name != "value" or not self.reverse:
            return found
        return [tuple(tuple(-entry if entry else 0.0 for entry in row) for row in matrix) for matrix in found]

    def tokens(self) -> Tokens:
        """Draw or build the tokens."""
        from attractor.states import Tokens

        masses: dict[str, Any] = {} if self.masses is None else {"masses": list(self.masses)}
        start = self.start
        if start.points is not None:
            return Tokens(start.points, **masses)  # type: ignore[arg-type]
        if start.kind == "orthonormal":
            return Tokens.orthonormal(start.tokens, self.dim, **masses)
        return Tokens.sample(start.kind, start.tokens, self.dim, start.seed, start.spread, **masses)

    def build_space(self) -> Space:
        """Build the space."""
        from attractor.spaces import Ellipsoid, space_named

        return space_named(self.space) if isinstance(self.space, str) else Ellipsoid(self.space)  # type: ignore[arg-type]

    def build_noise(self) -> Noise | None:
        """Build the noise; None without it."""
        from attractor.solvers import Noise

        if not self.noise:
            return None
        return Noise(self.noise, kind="space" if self.layers is None else "layer", seed=self.noise_seed)

    def flow_options(self) -> dict[str, Any]:
        """Return the keyword arguments of ``flow``, apart from the space and the noise."""
        options: dict[str, Any] = {"until": self.until}
        if self.step is None and self.layers is None:  # tolerances limit the errors of adaptive steps
            options |= {} if self.rtol == RTOL else {"rtol": self.rtol}
            options |= {} if self.atol == ATOL else {"atol": self.atol}
            options |= {} if self.merge is None else {"merge": self.merge or False}
        if self.layers is not None:
            options |= {"step": self.layers} if self.noise else {"step": self.layers, "method": "layers"}
        elif self.step is not None:
            options |= {"step": self.step}
        # no rule ends runs of fixed steps with noise
        return options if self.noise else {**options, "stop": list(self.stop)}

    def flow(self, **options: Any) -> Trajectory:
        """Run the system; ``options`` are further arguments of ``flow``, such as ``save``."""
        from attractor.solvers import flow

        options = {"space": self.build_space(), "noise": self.build_noise(), **self.flow_options(), **options}
        return flow(self.law(), self.tokens(), **options)

    # ------------------------------------------------------------------ texts that repeat the run

    def command(self) -> str:
        """Return the command line ``attractor simulate ...`` of this run, quoted for a POSIX shell."""
        words = ["attractor", "simulate", *self._words()]
        line = shlex.join(words)
        if max(map(len, words)) > LONGEST_WORD or len(line) > LONGEST_LINE:
            raise InputError(
                "the points and matrices of this system are too long for a command line: save it as JSON and read it with "
                "attractor.explorer.read_system"
            )
        return line

    def _words(self) -> list[str]:
        start, words = self.start, []
        if start.points is not None:
            words += ["--tokens-file", _inline(start.points)]
        else:
            words += ["--tokens", str(start.tokens), "--dim", str(self.dim)]
            words += [] if start.kind == "uniform" else ["--start", start.kind]
            words += [] if start.spread == 1.0 else ["--spread", write_number(start.spread)]
            words += [] if start.kind == "orthonormal" else ["--seed", str(start.seed)]
        words += [] if self.masses is None else ["--masses", _inline((self.masses,))]
        if self.is_isotropic:
            words += ["--beta", write_number(self.beta)]
        else:
            for name in ("query", "key", "value"):
                words += [f"--{name}", "|".join(map(_inline, self.matrices(name)))]
            words += ["--scale", write_number(self.beta)]
        words += [] if self.kernel == "softmax" else ["--kernel", self.kernel]
        for name, value in self.kernel_options.items():
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [] if value is False else [option, write_number(value)]
        words += [] if self.mask == "none" else ["--mask", self.mask]
        words += [] if self.theta is None else ["--positions", "rotary", "--theta", write_number(self.theta)]
        if isinstance(self.space, str):
            words += [] if self.space == "euclidean" else ["--space", self.space]
        else:
            words += ["--space", "ellipsoid", "--ellipsoid", _inline(self.space)]
        if self.noise:
            words += ["--noise", write_number(self.noise)]
            words += [] if self.layers is None else ["--noise-kind", "layer"]
            words += [] if self.noise_seed == 0 else ["--noise-seed", str(self.noise_seed)]
        options = self.flow_options()
        words += [word for name in ("until", "method", "step", "rtol", "atol") if name in options
                  for word in (f"--{name}", options[name] if name == "method" else write_number(options[name]))]  # fmt: skip
        words += ["--merge", write_number(self.merge) if self.merge else "off"] if "merge" in options else []
        return words if self.noise else [*words, "--stop", ",".join(self.stop) or "none"]

    def python(self) -> str:
        """Return a program that carries out this run and prints how it ended."""
        lines = ["import attractor as at", "", *self._law_lines(), self._tokens_line()]
        space = {"sphere": "at.Sphere()", "euclidean": "at.Euclidean()"}
        where = space[self.space] if isinstance(self.space, str) else f"at.Ellipsoid({write_rows(self.space)})"
        options = {"space": where}
        if self.noise:
            kind = "" if self.layers is None else ', kind="layer"'
            seed = "" if self.noise_seed == 0 else f", seed={self.noise_seed}"
            options["noise"] = f"at.Noise({write_number(self.noise)}{kind}{seed})"
        options |= {name: _literal(value) for name, value in self.flow_options().items()}
        lines.append(f"run = at.flow(law, tokens, {', '.join(f'{name}={text}' for name, text in options.items())})")
        return "\n".join([*lines, "print(run.outcome)", ""])

    def _law_lines(self) -> list[str]:
        kernel = []
        if self.kernel_options:
            given = ", ".join(f"{name}={_literal(value)}" for name, value in self.kernel_options.items())
            kernel = [f"kernel=at.{type(self._build_kernel()).__name__}({given})"]
        elif self.kernel != "softmax":
            kernel = [f'kernel="{self.kernel}"']
        options = [*kernel, *([] if self.mask == "none" else [f'mask="{self.mask}"'])]
        options += [] if self.theta is None else [f"positions=at.Rotary({write_number(self.theta)})"]
        if self.is_isotropic:
            return [f"law = at.Attention.isotropic({', '.join([str(self.dim), write_number(self.beta), *options])})"]
        rows = []
        for name in ("query", "key", "value"):
            found = [write_rows(matrix) for matrix in self.matrices(name)]
            rows.append(f"    {name}={found[0] if len(found) == 1 else '[' + ', '.join(found) + ']'},")
        options = [f"scale={write_number(self.beta)}", *options]
        return ["law = at.Attention(", *rows, *(f"    {option}," for option in options), ")"]

    def _tokens_line(self) -> str:
        masses = "" if self.masses is None else f", masses=[{', '.join(map(write_number, self.masses))}]"
        start = self.start
        if start.points is not None:
            return f"tokens = at.Tokens({write_rows(start.points)}{masses})"
        if start.kind == "orthonormal":
            return f"tokens = at.Tokens.orthonormal({start.tokens}, {self.dim}{masses})"
        spread = "" if start.spread == 1.0 else f", scale={write_number(start.spread)}"
        return (
            f'tokens = at.Tokens.sample("{start.kind}", {start.tokens}, {self.dim}, seed={start.seed}{spread}{masses})'
        )


def read_system(path: str | Path) -> System:
    """Read the description in a JSON file: the object itself, or a document with the key "system"."""
    place = Path(path)
    try:
        document = json.loads(place.read_text(encoding="utf-8"), parse_constant=_reject_constant)
    except OSError as error:
        raise InputError(f"{place} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not a JSON file: {error}") from None
    inner = document.get("system", document) if isinstance(document, dict) else document
    return System.from_json(inner)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


# ---------------------------------------------------------------------- numbers and matrices as text


def write_number(value: float) -> str:
    """Return a number as JavaScript writes it: the shortest decimals that are read as the same number."""
    value = float(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text, point = "".join(map(str, digits)), len(digits) + int(exponent)
    if 0 < point <= 21:
        text = text.ljust(point, "0") if point >= len(text) else f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + text
    else:
        head = text[0] + ("." + text[1:] if len(text) > 1 else "")
        text = f"{head}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return "-" * sign + text


def write_rows(matrix: Sequence[Sequence[float]]) -> str:
    """Return a matrix as nested lists."""
    return "[" + ", ".join("[" + ", ".join(map(write_number, row)) + "]" for row in matrix) + "]"


def _inline(matrix: Sequence[Sequence[float]]) -> str:
    """Return a matrix as an option takes it: rows separated by semicolons."""
    return ";".join(",".join(map(write_number, row)) for row in matrix)


def _literal(value: Any) -> str:
    """Return a value as Python source."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (int, float)):
        return write_number(value)
    return "[" + ", ".join(map(_literal, value)) + "]" if isinstance(value, list) else f'"{value}"'


def _identity(dim: int) -> Matrix:
    return tuple(tuple(float(row == column) for column in range(dim)) for row in range(dim))


def _is_identity(matrix: Matrix | None, dim: int) -> bool:
    return matrix is None or (len(matrix) == dim and matrix[0][0] == 1.0 and matrix == _identity(dim))


def _lists(matrix: Matrix) -> list[list[float]]:
    return [list(row) for row in matrix]


def _start_row(start: Start) -> dict[str, Any]:
    if start.points is not None:
        return {"kind": "points", "points": _lists(start.points)}
    kind, _, numbers = start.kind.partition(":")
    if kind == "clusters":
        parts, width = numbers.split(",")
        more: dict[str, Any] = {"clusters": int(float(parts)), "spread": float(width)}
    else:
        kind, more = start.kind, {} if start.spread == 1.0 else {"spread": start.spread}
    return {"kind": kind, "tokens": start.tokens, "seed": start.seed, **more}


def _head_row(head: Head) -> dict[str, Any]:
    names = {"interaction" if head.query is None else "key": head.key, "value": head.value, "query": head.query}
    return {name: _lists(matrix) for name, matrix in names.items() if matrix is not None}


def _mask_row(mask: str) -> Any:
    if mask == "none":
        return None
    return {"window": int(mask.removeprefix("window:"))} if mask.startswith("window:") else mask


# ---------------------------------------------------------------------- reading and checking


STARTS = ("kind", "tokens", "seed", "spread", "clusters", "points")
HEADS = ("interaction", "value", "query", "key")


def _read(document: Any) -> System:
    if not isinstance(document, dict):
        raise InputError(f"a system is a JSON object, got {_name(document)}")
    schema = document.get("schema")
    if schema != SCHEMA:
        raise InputError(f'a system has the key "schema": "{SCHEMA}", got {_shown(schema)}')
    for name in document.keys() - {"view"}:  # how the page shows it
        check_name(name, FIELDS, "the field", "fields of a system")
    given = {name: value for name, value in document.items() if value is not None}
    parts: dict[str, Any] = {"start": _read_start(given.get("start", {}))}
    points = parts["start"].points
    if points is not None:
        parts["dim"] = len(points[0])
    if "dim" in given:
        dim = _whole(given["dim"], "dim", 1)
        if points is not None and dim != len(points[0]):
            raise InputError(f"dim is {dim}, and the points have {len(points[0])} coordinates")
        parts["dim"] = dim
    if "space" in given:
        parts["space"] = _read_space(given["space"])
    if "masses" in given:
        parts["masses"] = tuple(_numbers(given["masses"], "masses"))
    if "heads" in given:
        parts["heads"] = tuple(
            _read_head(head, parts.get("dim", System.dim)) for head in _list(given["heads"], "heads")
        )
    if "mask" in given:
        parts["mask"] = _read_mask(given["mask"])
    if "positions" in given:
        parts["theta"] = _read_positions(given["positions"])
    if "kernel_options" in given:
        parts["kernel_options"] = _read_kernel_options(given["kernel_options"])
    for name in ("beta", "noise", "layers", "step", "until", "rtol", "atol", "merge"):
        if name in given:
            parts[name] = _number(given[name], name)
    if "noise_seed" in given:
        parts["noise_seed"] = _whole(given["noise_seed"], "noise_seed", 0)
    if "kernel" in given:
        parts["kernel"] = given["kernel"]
    if "stop" in given:
        parts["stop"] = tuple(str(name) for name in _list(given["stop"], "stop"))
    if "reverse" in given:
        if not isinstance(given["reverse"], bool):
            raise InputError(f"reverse must be true or false, got {_shown(given['reverse'])}")
        parts["reverse"] = given["reverse"]
    return System(**parts)


def _read_start(value: Any) -> Start:
    if not isinstance(value, dict):
        raise InputError(f"start must be an object, got {_name(value)}")
    for name in value:
        check_name(name, STARTS, "the field", "fields of start")
    kind = value.get("kind", "uniform")
    if (kind == "points") != ("points" in value):
        raise InputError('points belong to "kind": "points", and that needs them')
    if kind == "points":
        for name in ("tokens", "seed", "spread", "clusters"):
            if name in value:
                raise InputError(f"{name} does not belong to a start that is given by its points")
        return Start(points=_matrix(value["points"], "points"))
    if not isinstance(kind, str):
        raise InputError(f"the kind of a start is a name, got {_shown(kind)}")
    tokens = _whole(value.get("tokens", Start.tokens), "tokens", 1)
    seed = _whole(value.get("seed", 0), "seed", 0)
    if kind.partition(":")[0] == "clusters":
        numbers = kind.partition(":")[2].split(",") if ":" in kind else []
        try:
            parts = float(numbers[0]) if numbers else _whole(value.get("clusters", 3), "clusters", 1)
            width = float(numbers[1]) if len(numbers) > 1 else _number(value.get("spread", 0.25), "spread")
        except ValueError:
            raise InputError(f"the start {kind!r} is not known: write clusters:3,0.25") from None
        return Start(f"clusters:{write_number(parts)},{write_number(width)}", tokens, seed)
    return Start(kind, tokens, seed, _number(value.get("spread", 1.0), "spread"))


def _read_head(value: Any, dim: int) -> Head:
    if not isinstance(value, dict):
        raise InputError(f"a head must be an object with interaction and value, got {_name(value)}")
    for name in value:
        check_name(name, HEADS, "the field", "fields of a head")
    parts = {name: _matrix(part, name) for name, part in value.items() if part is not None}
    if "interaction" in parts and ("query" in parts or "key" in parts):
        raise InputError("a head has an interaction, or a query and a key, not both")
    if ("query" in parts) != ("key" in parts):
        raise InputError("a head with a query has a key too, and the reverse")
    # the identity is None, so that isotropic systems are recognised; a key beside a query stays
    interaction, value_map = (None if _is_identity(parts.get(name), dim) else parts[name] for name in HEADS[:2])
    return Head(parts.get("key", interaction), value_map, parts.get("query"))


def _read_space(value: Any) -> str | Matrix:
    if isinstance(value, dict) and list(value) == ["ellipsoid"]:
        return _matrix(value["ellipsoid"], "ellipsoid")
    if not isinstance(value, str):
        raise InputError(f'space must be "sphere", "euclidean" or {{"ellipsoid": rows}}, got {_shown(value)}')
    return value


def _read_mask(value: Any) -> str:
    if isinstance(value, dict) and list(value) == ["window"]:
        return f"window:{_whole(value['window'], 'window', 1)}"
    if value not in ("none", "causal"):
        raise InputError(f'mask must be null, "causal" or {{"window": w}}, got {_shown(value)}')
    return value


def _read_positions(value: Any) -> float | None:
    if isinstance(value, dict) and list(value) == ["rotary"]:
        return _number(value["rotary"], "rotary")
    raise InputError(f'positions must be null or {{"rotary": theta}}, got {_shown(value)}')


def _read_kernel_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"kernel_options must be an object, got {_name(value)}")
    return {name: part if isinstance(part, bool) else _number(part, name) for name, part in value.items()}


def _check_system(system: System) -> None:
    """Raise for a system that cannot be built, without building arrays of it."""
    from attractor.laws import kernel_named
    from attractor.states import UNIT, list_starts

    dim, start = system.dim, system.start
    if start.points is None:
        check_name(start.kind.partition(":")[0], (*list_starts(), "orthonormal"), "the start", "starts")
        if start.kind.partition(":")[0] in (*UNIT, "orthonormal") and start.spread != 1.0:
            raise InputError(f"spread does not belong to the start {start.kind}, whose tokens have length one")
        if any(mark in start.kind for mark in "\"'\\\n"):
            raise InputError(f"the start {start.kind!r} is not known")
        if start.kind == "orthonormal" and start.tokens > dim:
            raise InputError(f"at most dim orthonormal tokens exist: got {start.tokens} in dimension {dim}")
    kernel = kernel_named(system.kernel)
    for name in system.kernel_options:  # they are written into programs
        check_name(name, kernel.options(), f"the option of the {system.kernel} kernel", "options")
    for name in system.stop:
        check_name(name, RULES, "the rule", "rules")
    if isinstance(system.space, str):
        check_name(system.space, ("sphere", "euclidean"), "the space", "spaces")
    elif len(system.space) != dim or any(len(row) != dim for row in system.space):
        raise InputError(f"the ellipsoid's matrix must be {dim} x {dim}, for tokens of dimension {dim}")
    if system.masses is not None and len(system.masses) != system.n:
        raise InputError(f"there are {system.n} tokens and {len(system.masses)} masses")
    if not system.heads:
        raise InputError("a system has at least one head")
    rows = {dim if head.key is None or head.query is None else len(head.key) for head in system.heads}
    for head in system.heads:
        _check_head(head, dim)
    if len(rows) > 1:
        raise InputError("all heads must have queries and keys of one shape")
    if system.theta is not None and system.theta <= 0:
        raise InputError(f"the base of rotary positions must be positive, got {system.theta:g}")
    for name in ("until", "rtol", "layers", "step"):
        value = getattr(system, name)
        if value is not None and not value > 0:
            raise InputError(f"{name} must be positive, got {value:g}")
    for name in ("atol", "noise", "merge"):
        value = getattr(system, name)
        if value is not None and value < 0:
            raise InputError(f"{name} must not be negative, got {value:g}")
    if system.layers is not None and system.step is not None:
        raise InputError("layers have their own step: leave out step")
    if system.noise and system.layers is None and system.step is None:
        raise InputError("noise needs steps of one size: give step (or layers)")
    if system.step is not None and not system.noise:
        raise InputError("step belongs to noise: leave it out, or give layers for discrete layers")
    if system.layers is not None and system.reverse:
        raise InputError("time can be reversed where it is continuous: leave out layers or reverse")


def _check_head(head: Head, dim: int) -> None:
    if head.value is not None and (len(head.value) != dim or len(head.value[0]) != dim):
        raise InputError(f"the value must be {dim} x {dim}, for tokens of dimension {dim}")
    if head.query is None and head.key is not None and (len(head.key) != dim or len(head.key[0]) != dim):
        raise InputError(f"the interaction must be {dim} x {dim}, for tokens of dimension {dim}")
    if head.query is not None and (
        head.key is None or len(head.query) != len(head.key) or {len(head.query[0]), len(head.key[0])} != {dim}
    ):
        raise InputError(f"query and key must both be k x {dim}, for tokens of dimension {dim}")


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} must be a number, got {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{name} must be a finite number, got {_shown(value)}")
    return number


def _whole(value: Any, name: str, least: int) -> int:
    number = _number(value, name)
    if number != int(number) or number < least or number > 2**53:
        raise InputError(f"{name} must be a whole number of at least {least}, got {_shown(value)}")
    return int(number)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{name} must be a list, got {_name(value)}")
    return value


def _numbers(value: Any, name: str) -> list[float]:
    return [_number(part, f"an entry of {name}") for part in _list(value, name)]


def _matrix(value: Any, name: str) -> Matrix:
    rows = tuple(tuple(_numbers(row, f"a row of {name}")) for row in _list(value, name))
    if not rows or not rows[0] or len({len(row) for row in rows}) != 1:
        raise InputError(f"{name} must be a list of rows of one length")
    return rows


def _shown(value: Any) -> str:
    """Return a value for a message, cut if it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _name(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


FIELDS = tuple(System().to_json())
