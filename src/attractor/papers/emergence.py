"""arXiv 2305.05465: limit shapes of rescaled tokens, leaders, low-rank attention, and spectra of values of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attractor.laws import Attention, Rescaled
from attractor.models import checkpoint
from attractor.observables import leaders
from attractor.papers.figure import (
    SEED,
    Beside,
    Comparison,
    Data,
    Figure,
    Parameter,
    Settings,
    Table,
    Verdict,
    Work,
    draw_captioned,
    make_law,
    make_tokens,
)
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens

Array = NDArray[np.float64]
CODE = "borjanG/2023-transformers 746e488"
COARSE: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-9, "merge": False, "stop": ()}
LATE = 3.0  # times the published end, for limits that are approached slowly
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12, "merge": False, "stop": ()}
# value matrices of the four shapes, with the line of clustering-Tformers.py
VALUES = {
    "polytope": np.eye(2),  # 365
    "hyperplanes": np.array([[0.64709742, 0.81911926], [0.61210449, 0.63263484]]),  # 378
    "codimension 2": np.array(
        [[0.92761287, 0.94333073, 0.3827744], [0.94333073, 0.59991396, 0.47825472], [0.3827744, 0.47825472, 0.46668605]]
    ),  # 399
    "hyperplanes x polytope": np.diag([1.0, 1.0, -0.5]),  # 409
}


def softmax(scores: Array) -> Array:
    """Rows of weights."""
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def frozen_rk4(value: Array, start: Array, until: float, step: float) -> Array:
    """Return z(until) of the published scheme: the four stages of a step use the attention of its beginning."""
    from scipy.linalg import expm

    z, eye = start.copy(), np.eye(len(start))
    for number in range(round(until / step)):
        x = z @ expm(number * step * value).T
        pull = softmax(x @ x.T) - eye  # dz/dt = (w - 1) z V' with w of the beginning

        def slope(points: Array, pull: Array = pull) -> Array:
            return pull @ points @ value.T

        k1 = slope(z)
        k2 = slope(z + step / 2 * k1)
        k3 = slope(z + step / 2 * k2)
        z = z + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(z + step * k3))
    return z


def solve_with_scipy(value: Array, start: Array, until: float) -> Array:
    """Return z(until) by SciPy's LSODA."""
    from scipy.integrate import solve_ivp
    from scipy.linalg import expm

    def velocity(time: float, flat: Array) -> Array:
        z = flat.reshape(start.shape)
        x = z @ expm(time * value).T
        return ((softmax(x @ x.T) @ z - z) @ value.T).ravel()

    found = solve_ivp(velocity, (0.0, until), start.ravel(), method="LSODA", rtol=1e-10, atol=1e-12)
    return found.y[:, -1].reshape(start.shape)


def boundary_share(points: Array) -> float:
    """Return the share of points within 1% of the initial size 10 of the boundary of their hull."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        faces = ConvexHull(points).equations
    except QhullError:
        return 1.0
    return float((-(points @ faces[:, :-1].T + faces[:, -1]).max(1) < 0.1).mean())


def count_levels(heights: Array, apart: float = 0.1) -> int:
    """Return the number of groups of sorted numbers with gaps above ``apart``."""
    return 1 + int((np.diff(np.sort(heights)) > apart).sum())


def compute_shapes(settings: Settings, work: Work) -> Data:
    """Integrate rescaled tokens for every shape: accurately, by SciPy and by the published scheme."""
    rng, until = np.random.default_rng(settings["seed"]), settings["until"]
    rows: dict[str, Data] = {}
    for number, (name, value) in enumerate(VALUES.items()):
        work(number, len(VALUES))
        start = rng.uniform(-5.0, 5.0, (settings["tokens"], len(value)))
        eye = np.eye(len(value))
        law = Rescaled(make_law(eye, eye, value))
        run = flow(law, make_tokens(start), until=until, save=50, **EXACT)
        points = run.points.numpy()
        eigenvalues, left = (np.real(part) for part in np.linalg.eig(value.T))  # all spectra are real
        order = np.argsort(-eigenvalues)
        later = name == "codimension 2"  # the second eigenvalue is small
        last = flow(law, run.initial, until=LATE * until, save=1, **COARSE).points[-1] if later else run.points[-1]
        coarse, fine = (frozen_rk4(value, start, until, step) for step in (settings["step"], settings["step"] / 2))
        errors = [float(np.abs(found - points[-1]).max()) for found in (coarse, fine)]
        rows[name] = {
            "points": points.round(5),
            "eigenvalues": eigenvalues[order],
            "left": (left / np.linalg.norm(left, axis=0)).T[order],
            "late": last,
            "scipy": float(np.abs(solve_with_scipy(value, start, until) - points[-1]).max()),
            "published": coarse,
            "errors": errors,
        }
    return {"shapes": rows}


def project_shape(name: str, row: Data) -> tuple[Array, tuple[str, str]]:
    """Return the two coordinates (S, n, 2) in which a shape is seen, and their names."""
    points, left = np.array(row["points"]), np.array(row["left"])
    if name in ("polytope", "hyperplanes x polytope"):
        return points[..., :2], ("z1", "z2")
    return points @ left[:2].T, ("u1 z", "u2 z")


def describe_shape(name: str, row: Data) -> str:
    """Say what the tokens have become."""
    last, left = np.array(row["points"])[-1], np.array(row["left"])
    if name == "polytope":
        return f"{boundary_share(last):.0%} of tokens on the boundary of the hull"
    if name == "hyperplanes":
        return f"{count_levels(last @ left[0])} values of u1 z"
    if name == "codimension 2":
        now, then = (count_levels(points @ left[1]) for points in (last, np.array(row["late"])))
        return f"{count_levels(last @ left[0])} values of u1 z; {now} of u2 z, {then} at {LATE:g} times the time"
    return f"{boundary_share(last[:, :2]):.0%} of tokens on the boundary of the hull of (z1, z2)"


def meets_theorem(name: str, row: Data) -> bool:
    """Whether a shape is the one of the theorem, at the end of the run."""
    last, left = np.array(row["points"])[-1], np.array(row["left"])
    if name == "polytope":
        return boundary_share(last) == 1.0
    if name == "hyperplanes x polytope":
        return boundary_share(last[:, :2]) == 1.0
    if name == "codimension 2":
        last = np.array(row["late"])
        return max(count_levels(last @ left[0]), count_levels(last @ left[1])) <= 3
    return count_levels(last @ left[0]) <= 3


def draw_shapes(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw paths, last positions and their hull."""
    from scipy.spatial import ConvexHull

    panels = []
    for name, row in data["shapes"].items():
        places, axes = project_shape(name, row)
        curves = [Curve(places[:, i, 0], places[:, i, 1], fine=True, colour=0) for i in range(places.shape[1])]
        last = places[-1]
        curves.append(Curve(last[:, 0], last[:, 1], dots=True, colour=1))
        if np.linalg.matrix_rank(last - last[0], tol=1e-3) > 1:
            ring = last[[*(hull := ConvexHull(last).vertices), hull[0]]]
            curves.append(Curve(ring[:, 0], ring[:, 1], dashed=True))
        panels.append(Panel(tuple(curves), *axes, title=f"{name}: t = {data['settings']['until']:g}", equal=True))
    caption = (
        "Rescaled tokens z = e^(-tV) x: paths from the start, last positions (discs), and the convex hull of these (dashed). "
        "u1, u2: dual eigenvectors of the two largest eigenvalues of V."
    )
    return draw_captioned(data, panels, caption, path)


def judge_shapes(data: Data) -> Verdict:
    rows = data["shapes"]
    missed = [name for name, row in rows.items() if not meets_theorem(name, row)]
    ratios = [row["errors"][0] / max(row["errors"][1], 1e-300) for row in rows.values()]
    words = (
        f"The scheme called RK4 in the code freezes attention inside a step and is of first order: halving its step divides its error "
        f"by {min(ratios):.2f} to {max(ratios):.2f}, where RK4 would divide by 16."
    )
    if missed:
        return Verdict(
            "differs", f"At t = {data['settings']['until']:g} {', '.join(missed)} had not reached the shape. {words}"
        )
    return Verdict(
        "reproduced with a correction",
        f"All four limit shapes appear (codimension 2 after {LATE:g} times the published time). {words}",
    )


def compare_shapes(data: Data) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            f"largest difference of z at the end, {name}", row["scipy"], 0.0, 1e-6, "scipy.integrate.solve_ivp, LSODA"
        )
        for name, row in data["shapes"].items()
    )


SHAPES = Figure(
    key="rescaled-shapes",
    title="Four limit shapes of rescaled tokens",
    question="To which shapes do the tokens e^(-tV) x tend, by the spectrum of V?",
    source="geshkovski2023emergence",
    reference=f"figures of the theorems; clustering-Tformers.py of {CODE}",
    parameters=(
        SEED,
        Parameter("tokens", 20, "tokens, uniform in [-5, 5]^d", f"clustering-Tformers.py:343, 345 of {CODE}", 4),
        Parameter("until", 5.0, "final time", "clustering-Tformers.py:341", 0.1),
        Parameter("step", 0.1, "step of the published scheme", "clustering-Tformers.py:342", 1e-4),
    ),
    unknown=(
        "The seed of the starts: the code draws them without one.",
        "Numbers of tokens, dimensions and times of the printed figures, which the code sets by hand; those of its last state are used, "
        "and the dimensions of the matrices that it quotes.",
    ),
    cost=5.0,
    compute=compute_shapes,
    draw=draw_shapes,
    summarise=lambda data: (
        Table(
            "Limit shapes",
            ("shape", "eigenvalues of V", "found"),
            tuple(
                (name, ", ".join(f"{part:.3g}" for part in row["eigenvalues"]), describe_shape(name, row))
                for name, row in data["shapes"].items()
            ),
        ),
    ),
    verdict=judge_shapes,
    compare=compare_shapes,
    beside=lambda data: tuple(
        Beside(
            f"error at the end, {name}", "below 1e-6", f"{row['errors'][0]:.2g} (half the step: {row['errors'][1]:.2g})"
        )
        for name, row in data["shapes"].items()
    ),
    small={"tokens": 8, "until": 5.0},
)


def compute_leaders(settings: Settings, work: Work) -> Data:
    """Integrate tokens under positive definite A and V, and by Euler's method as published."""
    from scipy.integrate import solve_ivp

    rng, d = np.random.default_rng(settings["seed"]), 2
    value, interaction = (part @ part.T for part in (rng.uniform(-1, 1, (d, d)), rng.uniform(-1, 1, (d, d))))
    start, until, step = rng.uniform(-1, 1, (settings["tokens"], d)), settings["until"], settings["step"]
    law = make_law(interaction, np.eye(d), value)
    run = flow(law, make_tokens(start), until=until, save=100, **EXACT)
    weights = law.weights(Tokens(run.points)).numpy().reshape(len(run.times), len(start), -1)
    led = leaders(Tokens(run.points), law, each=True).reshape(len(run.times), -1)
    euler = start.copy()
    for _ in range(round(until / step)):
        euler = euler + step * softmax(euler @ interaction @ euler.T) @ euler @ value.T

    def velocity(_: float, flat: Array) -> Array:
        x = flat.reshape(start.shape)
        return (softmax(x @ interaction @ x.T) @ x @ value.T).ravel()

    exact = solve_ivp(velocity, (0.0, until), start.ravel(), method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    final = run.points[-1].numpy()
    scores = euler @ interaction @ euler.T
    return {
        "times": run.times,
        "points": run.points.numpy().round(6),
        "weights": {
            f"{time:g}": weights[np.abs(run.times.numpy() - time).argmin()].round(5) for time in (0.0, 1.0, 2.0)
        },
        "interaction": interaction,
        "value_spectrum": np.linalg.eigvalsh(value),
        "leaders": led.sum(-1),
        "chosen": (weights > 0.5).any(-2).sum(-1),
        "final_leaders": sorted(set(weights[-1].argmax(-1).tolist())),
        "euler_leaders": sorted(set(scores.argmax(-1).tolist())),
        "scipy": float(np.abs(exact.reshape(start.shape) / final - 1.0).max()),
        "euler": float(np.abs(euler / final - 1.0).max()),
    }


def draw_leaders(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw queries A x, tokens x and the pairs with weight, at three times, and the number of tokens that are attended."""
    times, points = np.array(data["times"]), np.array(data["points"])
    interaction, panels = np.array(data["interaction"]), []
    for name, weights in data["weights"].items():
        x = points[np.abs(times - float(name)).argmin()]
        queries = x @ interaction
        pairs = np.argwhere(np.array(weights) > 0.1)
        lines = [
            Curve([queries[i, 0], x[j, 0]], [queries[i, 1], x[j, 1]], fine=True, colour=5) for i, j in pairs if i != j
        ]
        dots = [
            Curve(queries[:, 0], queries[:, 1], "A x", dots=True, colour=2),
            Curve(x[:, 0], x[:, 1], "x", dots=True, colour=1),
        ]
        panels.append(Panel((*lines, *dots), "x1", "x2", f"t = {float(name):g}", equal=True))
    counts = (Curve(times, data["leaders"], "leaders"), Curve(times, data["chosen"], "with a weight above 1/2"))
    panels.append(Panel(counts, "time", "number of tokens"))
    caption = "Lines join a query A x with the tokens x that it gives a weight above 0.1. A leader gives itself its largest score."
    return draw_captioned(data, panels, caption, path)


def judge_leaders(data: Data) -> Verdict:
    few, total = len(data["final_leaders"]), data["settings"]["tokens"]
    same = data["final_leaders"] == data["euler_leaders"]
    words = (
        f"All {total} tokens end up attending to {few} of them. Euler's method with the published step "
        f"is off by {data['euler']:.2g} of the positions at the end, and its leaders are {'the same' if same else 'others'}."
    )
    return Verdict("reproduced" if few <= 3 and same else "differs", words)


LEADERS = Figure(
    key="leaders",
    title="Leaders emerge",
    question="Do all tokens come to attend to a few of them?",
    source="geshkovski2023emergence",
    reference=f"figure of leaders; leaders.py of {CODE}",
    parameters=(
        SEED,
        Parameter("tokens", 20, "tokens, uniform in [-1, 1]^2", f"leaders.py:10, 21 of {CODE}", 3),
        Parameter("until", 10.0, "final time", "leaders.py:11", 0.1),
        Parameter("step", 0.1, "step of the published Euler scheme", "leaders.py:12", 1e-4),
    ),
    unknown=(
        "The seed of A, V and the starts: V = RR', A = SS' with entries of R, S uniform in [-1, 1] (leaders.py:16-21).",
    ),
    cost=1.0,
    compute=compute_leaders,
    draw=draw_leaders,
    summarise=lambda data: (
        Table(
            "Leaders",
            (),
            (
                ("leaders at the start and the end", f"{data['leaders'][0]}, {data['leaders'][-1]}"),
                ("tokens with a weight above 1/2 at the end", str(data["chosen"][-1])),
                ("eigenvalues of V", ", ".join(f"{part:.3g}" for part in data["value_spectrum"])),
            ),
        ),
    ),
    verdict=judge_leaders,
    compare=lambda data: (
        Comparison(
            "largest relative difference of positions at the end",
            data["scipy"],
            0.0,
            1e-5,
            "scipy.integrate.solve_ivp, DOP853",
        ),
    ),
    beside=lambda data: (
        Beside("tokens attended to at the end", str(data["final_leaders"]), str(data["euler_leaders"])),
        Beside("relative error of positions at the end", "below 1e-5", f"{data['euler']:.2g}"),
    ),
    small={"tokens": 8},
)


def compute_low_rank(settings: Settings, work: Work) -> Data:
    """Integrate tokens and record the attention matrix; beside it, the linear motion of the published script."""
    from scipy.linalg import expm

    rng, n, d = np.random.default_rng(settings["seed"]), settings["tokens"], settings["dim"]
    value = rng.uniform(-1, 1, (d, d))
    value = value @ value.T
    start, eye = rng.uniform(-1, 1, (n, d)), np.eye(d)
    top = float(np.linalg.eigvalsh(value)[-1])
    times = [share / top for share in settings["growths"]]  # t with e^(lambda t) = e^share
    law = make_law(eye, eye, value)
    run = flow(law, make_tokens(start), save=times, rtol=1e-9, atol=1e-12, merge=False, stop=())
    ours = law.weights(Tokens(run.points)).numpy().reshape(len(times), n, n)
    linear = []
    for time in times:
        x = start @ expm(time * value).T
        linear.append(softmax(x @ x.T))

    def rank(weights: Array) -> int:
        return int(np.linalg.matrix_rank(weights, rtol=1e-3))

    last = ours[-1]
    step = settings["step"]
    stages = 1 + step * top + (step * top) ** 2 / 2 + (step * top) ** 3 / 6 + (step * top) ** 4 / 24
    return {
        "times": times,
        "top": top,
        "weights": ours.round(4),
        "linear": np.array(linear).round(4),
        "ranks": [rank(part) for part in ours],
        "linear_ranks": [rank(part) for part in linear],
        "boolean": float((last.max(-1) > 0.99).mean()),
        "apart": float(np.abs(ours - np.array(linear)).max()),
        "overflow": 308.0 / np.log10(stages) * step,
        "scipy_rank": rank(solve_attention(value, start, times[-1])),
    }


def solve_attention(value: Array, start: Array, until: float) -> Array:
    """Return the attention matrix at ``until``, of tokens integrated by SciPy."""
    from scipy.integrate import solve_ivp

    def velocity(_: float, flat: Array) -> Array:
        x = flat.reshape(start.shape)
        return (softmax(x @ x.T) @ x @ value.T).ravel()

    x = (
        solve_ivp(velocity, (0.0, until), start.ravel(), method="DOP853", rtol=1e-8, atol=1e-10)
        .y[:, -1]
        .reshape(start.shape)
    )
    return softmax(x @ x.T)


def draw_low_rank(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the attention matrices of the tokens, and of the published script at the last time."""
    panels = [
        Panel((), "key", "query", f"t = {time:.3g}, rank {rank}", matrix=weights)
        for time, rank, weights in zip(data["times"], data["ranks"], data["weights"], strict=True)
    ]
    panels.append(
        Panel(
            (),
            "key",
            "query",
            f"script, t = {data['times'][-1]:.3g}, rank {data['linear_ranks'][-1]}",
            matrix=data["linear"][-1],
        )
    )
    caption = (
        "Attention weights of tokens that move under attention, and (last) of the published script, whose tokens move under V alone. "
        "Rank: singular values above 0.001 of the largest."
    )
    return draw_captioned(data, panels, caption, path)


def judge_low_rank(data: Data) -> Verdict:
    words = (
        f"{data['boolean']:.0%} of rows become Boolean, with rank {data['ranks'][-1]} of {data['settings']['tokens']}. The script moves "
        f"tokens by x' = V x (lines 41-47), so its matrices are not those of attention dynamics (they differ by up to "
        f"{data['apart']:.2g}); with its step its numbers overflow near t = {data['overflow']:.3g}, before its T = 11."
    )
    reached = data["ranks"][-1] <= data["settings"]["tokens"] / 4 and data["boolean"] > 0.9
    return Verdict("reproduced with a correction" if reached else "differs", words)


LOW_RANK = Figure(
    key="low-rank-attention",
    title="The attention matrix becomes Boolean of low rank",
    question="Does the attention matrix tend to a Boolean matrix of low rank?",
    source="geshkovski2023emergence",
    reference=f"figure of the self-attention matrix; lowrank-attention.py of {CODE}",
    parameters=(
        SEED,
        Parameter("tokens", 40, "tokens, uniform in [-1, 1]^d", f"lowrank-attention.py:10, 20 of {CODE}", 3),
        Parameter("dim", 80, "dimension", "lowrank-attention.py:14", 1),
        Parameter("step", 0.1, "step of the published scheme", "lowrank-attention.py:12", 1e-4),
        Parameter("growths", (0.0, 2.0, 4.0, 8.0, 12.0), "times lambda t, with the largest eigenvalue lambda of V"),
    ),
    unknown=("The seed of V = RR' and of the starts.", "The times of the printed matrices."),
    cost=6.0,
    compute=compute_low_rank,
    draw=draw_low_rank,
    summarise=lambda data: (
        Table(
            f"Rank of the attention matrix (largest eigenvalue of V: {data['top']:.4g})",
            ("t", "attention dynamics", "published script"),
            tuple(
                (f"{time:.3g}", str(one), str(other))
                for time, one, other in zip(data["times"], data["ranks"], data["linear_ranks"], strict=True)
            ),
        ),
    ),
    verdict=judge_low_rank,
    compare=lambda data: (
        Comparison(
            "rank at the last time", data["ranks"][-1], data["scipy_rank"], 0, "scipy.integrate.solve_ivp, DOP853"
        ),
    ),
    beside=lambda data: (Beside("rank at the last time", str(data["ranks"][-1]), str(data["linear_ranks"][-1])),),
    small={"tokens": 10, "dim": 10},
)


def compute_spectra(settings: Settings, work: Work) -> Data:
    """Return eigenvalues of the value maps of all heads, from the checkpoint's laws and from its tensors."""
    opened = checkpoint(settings["model"])
    law = opened.layers[0].attention
    assert isinstance(law, Attention)
    value = law.value_map.double().numpy()
    heads = [np.linalg.eigvals(part) for part in value]
    # the r nonzero eigenvalues of O V are those of the small matrix V O
    assert law.output is not None
    small = (law.value.double() @ law.output.double()).numpy()
    rows = []
    for found, inner in zip(heads, small, strict=True):
        kept = found[np.argsort(-np.abs(found))][: len(inner)]
        other = np.linalg.eigvals(inner)
        gap = float(max(np.abs(other - one).min() for one in kept))
        rows.append({"real": kept.real, "imag": kept.imag, "gap": gap})
    return {"heads": rows, "width": value.shape[-1]}


def draw_spectra(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the nonzero eigenvalues of every head in the plane."""
    panels = [
        Panel(
            (Curve(row["real"], row["imag"], dots=True),),
            "real part",
            "imaginary part",
            f"head {number + 1}",
            equal=True,
        )
        for number, row in enumerate(data["heads"])
    ]
    caption = (
        f"Nonzero eigenvalues of the value matrices V_h (output projection included) of {data['settings']['model']}."
    )
    return draw_captioned(data, panels, caption, path)


def judge_spectra(data: Data) -> Verdict:
    positive = sum(max(row["real"]) > 0 for row in data["heads"])
    leading = sum(
        abs(row["imag"][0]) < 1e-9 and row["real"][0] > 0 and abs(complex(row["real"][0], row["imag"][0])) > 0
        for row in data["heads"]
    )
    total = len(data["heads"])
    words = (
        f"The paper shows albert-xlarge-v2 (16 heads of 128), whose weights come with no package; {data['settings']['model']} is another "
        f"trained ALBERT ({total} heads). In {positive} of {total} heads V has eigenvalues with positive real part, and in {leading} the "
        "largest eigenvalue is real and positive, the case of the theorem on hyperplanes."
    )
    return Verdict("no published result", words)


SPECTRA = Figure(
    key="value-spectra",
    title="Eigenvalues of the value matrices of a trained ALBERT",
    question="What spectra do value matrices of a trained model with shared layers have?",
    source="geshkovski2023emergence",
    reference=f"figure of the eigenvalues of ALBERT; albert_eigvals.ipynb of {CODE}",
    parameters=(
        Parameter(
            "model", "rxnmapper", "model with shared layers", "albert_eigvals.ipynb, cell 6 has albert-xlarge-v2"
        ),
    ),
    unknown=("Weights of albert-xlarge-v2 are not available here; another ALBERT takes their place.",),
    cost=1.0,
    compute=compute_spectra,
    draw=draw_spectra,
    summarise=lambda data: (
        Table(
            "Spectra of values",
            ("head", "largest |eigenvalue|", "largest real part", "smallest real part"),
            tuple(
                (
                    str(number + 1),
                    f"{max(np.hypot(row['real'], row['imag'])):.3g}",
                    f"{max(row['real']):.3g}",
                    f"{min(row['real']):.3g}",
                )
                for number, row in enumerate(data["heads"])
            ),
        ),
    ),
    verdict=judge_spectra,
    compare=lambda data: (
        Comparison(
            "largest distance of an eigenvalue of O V to those of V O",
            max(row["gap"] for row in data["heads"]),
            0.0,
            1e-8,
            "numpy.linalg.eigvals of the factors of the heads",
        ),
    ),
    extras=("plot", "checkpoints"),
    weights=lambda settings: [settings["model"]],
)

FIGURES = (SHAPES, LEADERS, LOW_RANK, SPECTRA)
