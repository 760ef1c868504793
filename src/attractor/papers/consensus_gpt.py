"""Consensus of tokens in repeated passes through a GPT model [abella2024asymptotic]: the final norm decides the law of decay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.models import Iteration, iterate
from attractor.papers.figure import (
    Beside,
    Comparison,
    Data,
    Figure,
    Parameter,
    Settings,
    Table,
    Verdict,
    Work,
)

CODE = "cyphylab/GPT-Consensus at 1b26b74"
PROMPT = (
    "Describe a futuristic city where humans and robots live together. Talk about what the city looks like and what daily life is like "
    "there."
)
CONSENSUS = 0.01  # of the metric


@dataclass(frozen=True)
class Variant:
    """One run of a random model; ``authors`` is what the authors' own code gives for 1 - mean cos after the last pass."""

    name: str
    feedforward: bool
    final_norm: bool
    init: str
    redraw: bool = False
    authors: float | None = None


VARIANTS = (
    Variant("ln_f in each pass", True, True, "family", authors=0.3219625461),
    Variant("ln_f in each pass, no feed-forward", False, True, "family", authors=0.1589028074),
    Variant("no ln_f", True, False, "family"),
    Variant("no ln_f, no feed-forward", False, False, "family"),
    Variant("N(0, 0.02), ln_f in each pass", True, True, "plain", authors=0.004947568926),
    Variant("N(0, 0.02), ln_f in each pass, no feed-forward", False, True, "plain", authors=1.091878535e-05),
    Variant("N(0, 0.02), no ln_f", True, False, "plain"),
    Variant("N(0, 0.02), no ln_f, no feed-forward", False, False, "plain"),
    Variant("redrawn, ln_f in each pass", True, True, "family", redraw=True),
)


@cache
def _model(layers: int, dim: int, heads: int, init: str, seed: int) -> Any:
    from attractor.models import initialize, make_config

    return initialize(make_config("gpt2", layers=layers, dim=dim, heads=heads), seed=seed, init=init)


def draw_prompt(tokens: int, seed: int) -> list[int]:
    """Return random token ids of GPT-2."""
    return np.random.default_rng(seed).integers(0, 50257, tokens).tolist()


def compute_random(settings: Settings, work: Work) -> Data:
    """Pass random tokens through random GPT-2 models under every variant."""
    size = settings["layers"], settings["dim"], settings["heads"]
    seed, passes = settings["seed"], settings["passes"]
    prompt = draw_prompt(settings["tokens"], seed)
    rows = []
    for number, variant in enumerate(VARIANTS):
        work(number, len(VARIANTS))

        def run(variant: Variant = variant) -> Data:
            model = _model(*size, variant.init, seed)
            options: Any = {
                "final_norm": variant.final_norm,
                "feedforward": variant.feedforward,
                "redraw": variant.redraw,
            }
            found = iterate(model, [prompt], passes=passes, seed=seed, init=variant.init, **options)
            return _row(variant.name, found) | {
                "final_norm": variant.final_norm,
                "redrawn": variant.redraw,
                "signed": _signed(found),
            }

        rows.append(work.keep(variant.name, run))
    _model.cache_clear()
    return {"rows": rows}


def _signed(found: Iteration) -> float:
    """Return 1 - mean cos(x_1, x_j) of the last tokens, with signs, as the code prints it."""
    x = found.final[0].double().numpy()
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return float(np.square(unit - unit[0]).sum(-1).mean() / 2)


def _row(name: str, found: Iteration) -> Data:
    decay = found.decay
    return {
        "name": name,
        "metric": found.metric.tolist(),
        "least": found.curves["cosine_min"].mean(0).tolist(),
        "decay": decay.name,
        "fits": {law: {"rate": fit.rate, "residual": fit.residual} for law, fit in decay.fits.items()},
        "norm": found.norm_between,
        "tokens": list(found.lengths),
    }


def judge_random(data: Data) -> Verdict:
    """Compare the laws of decay with and without the final norm between passes."""
    fixed = [row for row in data["rows"] if not row["redrawn"]]
    inside = [row for row in fixed if row["final_norm"]]
    outside = [row for row in fixed if not row["final_norm"]]
    count = lambda rows, law: sum(row["decay"] == law for row in rows)  # noqa: E731
    falls = sum(row["metric"][-1] < 0.5 * row["metric"][0] for row in fixed)
    reason = (
        f"The metric falls to less than half in {falls} of {len(fixed)} variants with fixed weights. With ln_f in each pass "
        "(script of May 2025) "
        f"{count(inside, 'exponential')} of {len(inside)} decay exponentially, without it (script of January 2025) "
        f"{count(outside, 'power')} of {len(outside)} like a power of the passes."
    )
    for row in data["rows"]:
        if row["redrawn"]:
            last = len(row["metric"]) - 1
            reason += f" With weights drawn anew for each pass it is {row['metric'][-1]:.2g} after {last} passes (decay: {row['decay']})."
    if falls < len(fixed):
        return Verdict("differs", reason)
    notes = (
        " Corrections: the two scripts follow different laws; the last one prints 1 - mean cos with signs, where its description "
        "and the first take absolute values; and these are small random models instead of GPT-2 XL and GPT-Neo 2.7B."
    )
    return Verdict("reproduced with a correction", reason + notes)


def compare_random(data: Data) -> tuple[Comparison, ...]:
    """Compare the last value with that of the authors' code on the same weights and tokens."""
    if not RANDOM.has_published_settings(data):
        return ()
    rows = []
    for row, variant in zip(data["rows"], VARIANTS, strict=True):
        if variant.authors is not None:
            quantity = f"{variant.name}: 1 - mean cos after the last pass"
            rows.append(
                Comparison(
                    quantity,
                    row["signed"],
                    variant.authors,
                    1e-6,
                    f"consensus() of {CODE}, same weights",
                    relative=True,
                )
            )
    return tuple(rows)


def _law_words(row: Data) -> str:
    fit = row["fits"].get(row["decay"])
    if fit is None:
        return row["decay"]
    return f"exp(-{fit['rate']:.3g} k)" if row["decay"] == "exponential" else f"k^-{fit['rate']:.3g}"


def summarise(data: Data) -> tuple[Table, ...]:
    """Return the metric after some passes and the law of its decay."""
    passes = len(data["rows"][0]["metric"]) - 1
    shown = sorted({1, passes // 5, passes // 2, passes})
    rows = [
        (
            row["name"],
            *(format_number(float(f"{row['metric'][k]:.3g}")) for k in shown),
            f"{row['least'][-1]:.2f}",
            row["decay"],
            _law_words(row),
        )
        for row in data["rows"]
    ]
    columns = ("run", *(f"pass {k}" for k in shown), "smallest cos", "decay", "fit")
    return (Table("1 - mean |cos(x_1, x_j)|", columns, tuple(rows)),)


def draw_random(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the metric over passes: straight lines on the left are exponentials, on the right powers."""
    from attractor.plotting import Curve, Panel, draw_panels

    def curves(rows: list[Data]) -> tuple[Curve, ...]:
        found = []
        for row in rows:
            k = [k for k, value in enumerate(row["metric"]) if k and value > 1e-14]
            found.append(
                Curve(
                    k,
                    [row["metric"][i] for i in k],
                    row["name"].replace(", ln_f in each pass", "").replace("no ln_f, ", "").replace(", no ln_f", ""),
                )
            )
        return tuple(found)

    inside = [row for row in data["rows"] if row["final_norm"]]
    outside = [row for row in data["rows"] if not row["final_norm"]]
    label = "1 - mean |cos(x₁, xⱼ)|"
    panels = (
        Panel(curves(inside), "pass", label, "ln_f in each pass (May 2025)", log_y=True),
        Panel(curves(outside), "pass", "", "no ln_f (January 2025)", log_x=True, log_y=True),
    )
    s = data["settings"]
    caption = (
        f"Random GPT-2 of {s['layers']} layers, dimension {s['dim']}, {s['heads']} heads; {s['tokens']} random tokens, seed {s['seed']}. "
        "An exponential is straight on the left, a power on the right."
    )
    return (draw_panels(panels, "Consensus of tokens in repeated passes through random GPT-2", caption, path),)


def compute_trained(settings: Settings, work: Work) -> Data:
    """Pass the published prompt through trained models, with the final norm in each pass and without."""
    from attractor.models import silence_transformers

    rows = []
    runs = [(model, norm) for model in settings["models"] for norm in (True, False)]
    if not runs:
        raise InputError("give the names or paths of models")
    with silence_transformers():
        for number, (model, norm) in enumerate(runs):
            work(number, len(runs))

            def run(model: str = model, norm: bool = norm) -> Data:
                found = iterate(
                    model, [PROMPT], passes=settings["passes"], final_norm=norm, max_tokens=settings["tokens"]
                )
                return _row(model, found) | {"final_norm": norm}

            rows.append(work.keep(f"{model} {norm}", run))
    return {"rows": [row for row in rows if row["final_norm"] or row["norm"] != "the model has no final norm"]}


def judge_trained(data: Data) -> Verdict:
    """Say which trained models reach consensus; the paper's models are not among them."""
    reached = [row for row in data["rows"] if min(row["metric"]) < CONSENSUS]
    parted = [row for row in data["rows"] if row["least"][-1] < -0.5]
    reason = (
        f"{len(reached)} of {len(data['rows'])} runs reach consensus (metric below {CONSENSUS:g}) within "
        f"{len(data['rows'][0]['metric']) - 1} passes"
        f"{': ' + ', '.join(_run_name(row) for row in reached) if reached else ''}; in {len(parted)} tokens part into opposite groups "
        "(smallest cosine below -0.5), which the metric does not see. The paper's models, GPT-2 XL and GPT-Neo 2.7B, do not come "
        "with a package: --set models=PATH runs them from their files."
    )
    return Verdict("no published result", reason)


def _run_name(row: Data) -> str:
    return f"{Path(row['name']).name} ({row['norm']})"


def summarise_trained(data: Data) -> tuple[Table, ...]:
    """Return the metric after some passes."""
    return summarise({**data, "rows": [row | {"name": _run_name(row)} for row in data["rows"]]})


def draw_trained(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the metric and the smallest cosine over passes."""
    from attractor.plotting import Curve, Panel, draw_panels

    k = list(range(len(data["rows"][0]["metric"])))
    panels = (
        Panel(
            tuple(Curve(k, row["metric"], _run_name(row)) for row in data["rows"]),
            "pass",
            "1 - mean |cos(x₁, xⱼ)|",
            "metric of the paper",
        ),
        Panel(tuple(Curve(k, row["least"]) for row in data["rows"]), "pass", "cosine", "smallest cosine of a pair"),
    )
    caption = (
        "The prompt of the script. The metric takes absolute values: opposite groups of tokens look like consensus; the smallest cosine "
        "tells them apart."
    )
    return (draw_panels(panels, "Tokens in repeated passes through trained models", caption, path),)


def beside_random(data: Data) -> tuple[Beside, ...]:
    """Return the metric of the paper beside the number that the last script prints."""
    return tuple(
        Beside(
            row["name"],
            f"1 - mean |cos| = {row['metric'][-1]:.3g}, {_law_words(row)}",
            f"1 - mean cos = {row['signed']:.3g}",
        )
        for row in data["rows"]
    )


MODELS = ("minilm", "stories15M", "smollm2")
README = f"GPTConsensus.py of {CODE}"

RANDOM = Figure(
    key="consensus-gpt-random",
    title="Consensus in random GPT-2",
    question="Do tokens reach consensus in repeated passes through a GPT-2 with random weights, and by which law?",
    source="abella2024asymptotic",
    reference=f"GPTConsensus.py --randominit, --fullrandom and --noff of {CODE}, and its version of January 2025",
    parameters=(
        Parameter("seed", 42, "seed of weights and tokens", README, minimum=0),
        Parameter("passes", 50, "passes through all layers (published: 1000)", minimum=2),
        Parameter("layers", 12, "layers (GPT-2 XL: 48)", minimum=1),
        Parameter("dim", 192, "dimension (GPT-2 XL: 1600)", minimum=2),
        Parameter("heads", 6, "heads (GPT-2 XL: 25)", minimum=1),
        Parameter("tokens", 24, "random tokens", minimum=2),
    ),
    unknown=("which prompts and how many passes the figures of the paper show.",),
    cost=30.0,
    compute=compute_random,
    draw=draw_random,
    summarise=summarise,
    verdict=judge_random,
    compare=compare_random,
    beside=beside_random,
    small={"passes": 8, "layers": 2, "dim": 12, "heads": 2, "tokens": 6},
    extras=("plot", "checkpoints"),
)
TRAINED = Figure(
    key="consensus-gpt-trained",
    title="Consensus in trained models",
    question="Do tokens reach consensus in repeated passes through trained models?",
    source="abella2024asymptotic",
    reference=f"GPTConsensus.py of {CODE}",
    parameters=(
        Parameter("models", MODELS, "names or paths of models (published: GPT-Neo 2.7B, GPT-2 XL)"),
        Parameter("passes", 30, "passes through all layers (published: 1000)", minimum=2),
        Parameter("tokens", 24, "the first tokens of the prompt", minimum=2),
    ),
    unknown=("which prompts and how many passes the figures of the paper show.",),
    cost=120.0,
    compute=compute_trained,
    draw=draw_trained,
    summarise=summarise_trained,
    verdict=judge_trained,
    small={"models": ("minilm",), "passes": 2, "tokens": 4},
    extras=("plot", "checkpoints"),
    weights=lambda settings: tuple(settings["models"]),
)
FIGURES = (RANDOM, TRAINED)
