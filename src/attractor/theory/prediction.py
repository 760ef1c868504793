"""``predict``: the theorems that apply to a law, a state and a space; comparison of predictions with runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import torch

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law, Rotary, Schedule
from attractor.registry import unknown
from attractor.solvers import LogTime, Noise, Redrawn, Trajectory
from attractor.spaces import Euclidean, Space, Sphere, space_named
from attractor.states import Density, Equiangular, Gaussian, Tokens
from attractor.theory.checking import STOP_FAR_AWAY
from attractor.theory.conditions import FATES, Condition, Margin, Verdict, are_exclusive, find_contradiction
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Theorem, enter_tokens, find_theorem, integrate, list_theorems
from attractor.theory.timescales import TimeScale


@dataclass(frozen=True, repr=False)
class Finding:
    """The evaluation of one theorem for one case; ``scale`` says when its fate is to be expected, where that is known."""

    theorem: Theorem
    conditions: tuple[Condition, ...]
    verdict: Verdict
    fate: str | None
    scale: TimeScale | None = None

    @property
    def missing(self) -> tuple[Condition, ...]:
        """Conditions that do not hold or are undetermined."""
        return tuple(condition for condition in self.conditions if condition.verdict is not Verdict.HOLDS)

    @property
    def meaning(self) -> str:
        """The fate in words, with the quantity that never decreases, and whether some starts are exceptions."""
        if self.fate is None:
            return ""
        words = f"{self.theorem.quantity} never decreases" if self.fate == "monotone" else FATES[self.fate]
        almost = self.theorem.for_almost_every_start and self.fate != "identity"
        return f"{words}, from almost every start" if almost else words

    @property
    def exception(self) -> str | None:
        """Why this start is (or cannot be told from) an exception of a theorem whose other hypotheses hold, or None."""
        if len(self.conditions) < len(self.theorem.hypotheses):
            return None
        missing = self.missing
        return missing[0].margin.detail if len(missing) == 1 and missing[0].generic else None

    @property
    def margin(self) -> float:
        """The smallest margin of a strict inequality."""
        return min((c.margin.value for c in self.conditions if c.margin.high > 0), default=1.0)

    @property
    def distance(self) -> tuple[int, float]:
        """Number of hypotheses not known to hold, then the sum of their negative margins: smaller is closer to applying."""
        unevaluated = len(self.theorem.hypotheses) - len(self.conditions)
        return len(self.missing) + unevaluated, sum(max(0.0, -condition.margin.value) for condition in self.missing)

    def __repr__(self) -> str:
        lacking = ", ".join(condition.name for condition in self.missing)
        fate = f", {self.fate}" if self.fate not in (None, "identity") else ""
        return f"Finding({self.theorem.key}: {self.verdict.value}{fate}{'; missing: ' + lacking if lacking else ''})"

    def row(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "theorem": self.theorem.key,
            "title": self.theorem.title,
            "status": self.theorem.status.value,
            "verdict": self.verdict.value,
            "fate": self.fate,
            "meaning": self.meaning,
            "rate": self.theorem.rate,
            "exception": self.exception,
            "conditions": [condition.row() for condition in self.conditions],
            "not_examined": [h.name for h in self.theorem.hypotheses[len(self.conditions) :]],
        }


@dataclass(frozen=True, repr=False)
class Prediction:
    """The evaluation of all theorems for a case; ``until`` is the end of the run that is asked about, if any, and ``note`` says why no
    theorem can apply to a law, if that is so."""

    findings: tuple[Finding, ...]
    until: float | LogTime | None = None
    note: str = ""

    @property
    def applicable(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.HOLDS)

    @property
    def undetermined(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.UNDETERMINED)

    @property
    def fates(self) -> dict[str, list[str]]:
        """Predicted fates and the theorems behind each."""
        found: dict[str, list[str]] = {}
        for finding in self.applicable:
            if finding.fate is not None and finding.fate != "identity":
                found.setdefault(finding.fate, []).append(finding.theorem.key)
        return found

    @property
    def meanings(self) -> dict[str, str]:
        """Predicted fates in words; "from almost every start" unless a theorem covers every start."""
        found: dict[str, list[Finding]] = {}
        for finding in self.applicable:
            if finding.fate is not None and finding.fate != "identity":
                found.setdefault(finding.fate, []).append(finding)
        return {
            fate: "; ".join(dict.fromkeys(item.meaning for item in items)) if fate == "monotone" else _choose(items)
            for fate, items in found.items()
        }

    @property
    def exceptional(self) -> tuple[Finding, ...]:
        """Theorems about almost every start to which this start is an exception."""
        return tuple(finding for finding in self.findings if finding.exception is not None)

    def find_scale(self, fate: str) -> TimeScale | None:
        """Return the sharpest statement about when a fate is to be expected: exact times, then bounds, then orders of magnitude."""
        scales = [item.scale for item in self.applicable if item.fate == fate and item.scale is not None]
        timed = [scale for scale in scales if scale.log_time is not None]
        return min(timed, key=lambda scale: PREFERENCE[scale.kind], default=scales[0] if scales else None)

    @property
    def contradictions(self) -> tuple[tuple[Finding, Finding], ...]:
        """Pairs of applicable theorems whose fates exclude each other; there must be none."""
        pairs = combinations([finding for finding in self.applicable if finding.fate is not None], 2)
        return tuple((one, other) for one, other in pairs if are_exclusive(str(one.fate), str(other.fate)))

    @property
    def nearest(self) -> Finding | None:
        """The theorem closest to applying among those that do not; theorems that predict a fate come first."""
        others = [finding for finding in self.findings if finding.verdict is not Verdict.HOLDS]

        def rank(finding: Finding) -> tuple[Any, ...]:
            excluded = any(condition.name == NO_NOISE for condition in finding.conditions)
            return excluded, finding.theorem.fate == "identity", *finding.distance

        return min(others, key=rank, default=None)

    def __repr__(self) -> str:
        """List fates with their theorems, other theorems that apply, undetermined ones, and what the nearest one lacks."""
        stated = {key for keys in self.fates.values() for key in keys}
        lines = [self.note] if self.note else []
        for fate, keys in self.fates.items():
            scale = self.find_scale(fate)
            lines.append(f"{fate} ({self.meanings[fate]}): {', '.join(keys)}")
            lines += [f"  {scale.describe(self.until)}"] if scale is not None else []
        lines += [] if self.fates or self.note else ["no theorem predicts a fate"]
        lines += [
            f"exceptional start: {item.theorem.key} is about almost every start, but here {item.exception}"
            for item in self.exceptional
        ]
        also = [finding.theorem.key for finding in self.applicable if finding.theorem.key not in stated]
        lines += [f"also apply: {', '.join(also)}"] if also else []
        lines += [
            f"  {item.theorem.key}: {item.scale.describe(self.until)}"
            for item in self.applicable
            if item.theorem.noisy and item.scale is not None and item.theorem.key in also
        ]
        lines += [f"undetermined: {', '.join(f.theorem.key for f in self.undetermined)}"] if self.undetermined else []
        lines += [f"CONTRADICTION: {a.theorem.key} and {b.theorem.key}" for a, b in self.contradictions]
        if self.nearest is not None:
            lacking = (
                ", ".join(condition.name for condition in self.nearest.missing) or "nothing that could be examined"
            )
            lines.append(f"nearest that does not apply: {self.nearest.theorem.key}; missing: {lacking}")
        return "Prediction\n" + "\n".join("  " + line for line in lines)

    def row(self) -> dict[str, Any]:
        """Return a JSON object."""
        nearest = self.nearest
        return {
            "fates": {
                fate: {
                    "means": self.meanings[fate],
                    "theorems": keys,
                    "expected": None if (scale := self.find_scale(fate)) is None else scale.row(self.until),
                }
                for fate, keys in self.fates.items()
            },
            "until": float(self.until) if isinstance(self.until, LogTime) else self.until,
            **({"log_until": self.until.log} if isinstance(self.until, LogTime) else {}),
            "note": self.note or None,
            "exceptional": [{"theorem": item.theorem.key, "reason": item.exception} for item in self.exceptional],
            "applicable": [finding.row() for finding in self.applicable],
            "undetermined": [finding.row() for finding in self.undetermined],
            "times": {
                item.theorem.key: item.scale.row(self.until) for item in self.applicable if item.scale is not None
            },
            "contradictions": [[one.theorem.key, other.theorem.key] for one, other in self.contradictions],
            "nearest": None if nearest is None else {**nearest.row(), "missing": [c.name for c in nearest.missing]},
        }


NO_NOISE = "no noise"  # the condition of statements about motion without noise
PREFERENCE = {"exact": 0, "not before": 1, "order of magnitude": 2, "at the latest": 3}


def _choose(findings: Sequence[Finding]) -> str:
    """Return the meaning of a fate that several theorems predict: the one without exceptional starts, if there is one."""
    return min((item.meaning for item in findings), key=len)


def predict(
    law: Law,
    state: Tokens | Gaussian | Density | Equiangular | None = None,
    space: Space | str | None = None,
    *,
    step: float | None = None,
    paper: str | None = None,
    until: float | LogTime | None = None,
    noise: Any = None,
) -> Prediction:
    """Evaluate the hypotheses of every theorem for a law, a state and a space.

    Parameters
    ----------
    law, state, space : as in ``flow``; without a state only statements about laws can apply. Equiangular tokens are written out, in at
        least as many dimensions as there are tokens.
    step : the size of discrete layers; None for continuous time.
    paper : only the theorems of one source: "regimes", "consensus", "meanfield".
    until : the end of a run, such as 1e6 or exp(1000); fates that are to be expected later are said to be beyond it.
    noise : of the run. Statements about motion without noise are then left out, since their fates need not hold with it; those about
        noise (critical noise, onset of order, blow-up, reversibility, redrawn values) are evaluated.
    """
    if noise is not None and not isinstance(noise, (Noise, Redrawn)):
        raise InputError(f"noise must be Noise(...) or Redrawn(...), got {type(noise).__name__}")
    if not isinstance(law, Law):
        raise InputError(f"predict needs a law such as Attention(...), got {type(law).__name__}")
    if state is not None and not isinstance(state, (Tokens, Gaussian, Density, Equiangular)):
        raise InputError(
            f"predict needs Tokens(...), a Gaussian(...), a Density(...) or Equiangular(...), got {type(state).__name__}"
        )
    if space is None and isinstance(state, Density):
        space = Sphere()
    place = Euclidean() if space is None else space_named(space) if isinstance(space, str) else space
    if not isinstance(place, Space):
        raise InputError(f"space must be Sphere(), an Ellipsoid(...) or a name, got {type(place).__name__}")
    precision = torch.float64
    if isinstance(state, Equiangular) and not state.batch_shape:
        law, state = _write_out(law, state, place)
    if isinstance(state, Tokens):
        law.check(state)
        place.check_dimension(state.dim)
    if state is not None and state.batch_shape:
        raise InputError(
            f"a prediction is about one start, got an ensemble of shape {tuple(state.batch_shape)}: call predict for each member"
        )
    if isinstance(state, Tokens):
        precision = state.points.dtype
        state = _widen(enter_tokens(law, state, place))
    elif isinstance(state, (Gaussian, Density)) and getattr(law, "dim", state.dim) != state.dim:
        what = "Gaussian" if isinstance(state, Gaussian) else "density"
        raise InputError(f"the law moves points of {law.dim} coordinates, the {what} has {state.dim}")  # type: ignore[attr-defined]
    if paper is not None and not list_theorems(paper):
        papers = sorted({theorem.key.split(".")[0] for theorem in list_theorems()})
        raise unknown(paper, papers, "paper")
    if step is not None and not (math.isfinite(step) and step > 0):
        raise InputError(f"step must be positive, got {step}")
    if until is not None and not isinstance(until, LogTime) and not (math.isfinite(until) and until > 0):
        raise InputError(f"until must be a positive time, got {until}")
    options: dict[str, Any] = {} if step is None else {"method": "layers", "step": float(step)}
    options |= {"noise": noise} if isinstance(noise, Noise) and _is_random(noise) else {}
    facts = {"redrawn": True} if isinstance(noise, Redrawn) and noise.strength > 0 else {}
    assert not isinstance(state, Equiangular)
    case = Case(law, state, place, options=options, facts=facts, entered=True, precision=precision)
    findings = tuple(apply_theorem(theorem, case) for theorem in list_theorems(paper))
    note = "" if is_attention(law) else _note(law)
    if _has_noise(case):
        note = "; ".join(filter(None, (note, "statements about motion without noise are left out")))
    return Prediction(findings, until, note)


MOST_EQUIANGULAR = 512  # tokens that are written out


def _write_out(law: Law, state: Equiangular, space: Space) -> tuple[Law, Tokens]:
    """Equiangular tokens in coordinates, and the law for their dimension."""
    if state.n > MOST_EQUIANGULAR:
        raise UnsupportedError(
            f"hypotheses about equiangular tokens are evaluated for up to {MOST_EQUIANGULAR} of them, got {state.n:,}; the flow itself "
            "takes any number"
        )
    if not isinstance(law, Attention):
        raise UnsupportedError(f"predict knows equiangular tokens under Attention(...), got {type(law).__name__}")
    law.for_equiangular(state.n)  # raises for laws that do not keep tokens equiangular
    dim = max(law.dim, state.n)
    if law.dim < dim:
        space.check_dimension(dim)
        eye = torch.eye(dim, dtype=torch.float64)
        shape = law.query.shape[:-2]
        scalars = {name: getattr(law, name)[..., 0, 0].double().cpu() for name in ("query", "key", "value")}
        law = replace(law, **{name: part.reshape(*shape, 1, 1) * eye for name, part in scalars.items()})
    return law, state.tokens(dim)


def _is_random(noise: Noise) -> bool:
    """Whether noise has a strength other than zero."""
    return not noise.constant or noise.has_common or bool(torch.as_tensor(noise.strength).any())


def _has_noise(case: Case) -> bool:
    return "noise" in case.options or bool(case.facts.get("redrawn"))


def _widen(tokens: Tokens) -> Tokens:
    """Return tokens in float64, in which hypotheses are evaluated."""
    masses, positions = (None if part is None else part.double().cpu() for part in (tokens.masses, tokens.positions))
    return Tokens.unchecked(tokens.points.double().cpu(), masses, positions)


def is_attention(law: Law) -> bool:
    """Return whether a law is an Attention, or a Schedule of several."""
    parts = law.laws if isinstance(law, Schedule) else (law,)
    return all(isinstance(part, Attention) for part in parts)


def _note(law: Law) -> str:
    return f"the theorems are about Attention(...), and the law is {type(law).__name__}: none of them says where its tokens go"


def apply_theorem(theorem: Theorem, case: Case) -> Finding:
    """Evaluate one theorem for one case."""
    mismatch = _find_time_mismatch(theorem, case)
    if _has_noise(case) and not theorem.noisy:
        mismatch = Condition(
            "no noise", r"\epsilon = 0", Margin.boolean(False, "it is about motion without noise"), True
        )
    if mismatch is not None:
        return Finding(theorem, (mismatch,), Verdict.FAILS, None)
    conditions = theorem.examine(case)
    verdict = theorem.decide(conditions)
    if verdict is not Verdict.HOLDS:
        return Finding(theorem, conditions, verdict, None)
    scale = None if theorem.time_scale is None else theorem.time_scale(case)
    return Finding(theorem, conditions, verdict, theorem.predict_fate(case), scale)


def _find_time_mismatch(theorem: Theorem, case: Case) -> Condition | None:
    """Return the condition that fails where a statement about flows is applied to discrete layers, or the reverse."""
    discrete = case.options.get("method") == "layers"
    if discrete == _is_discrete(theorem.key) or theorem.time_independent:
        return None
    if discrete:
        return Condition("continuous time", r"\dot x", Margin.boolean(False, "asked about discrete layers"), True)
    return Condition("discrete layers", r"x + h\,\dot x", Margin.boolean(False, "asked about continuous time"), True)


@cache
def _is_discrete(key: str) -> bool:
    """Return whether a theorem is about discrete layers, as its instances are."""
    return find_theorem(key).sample(Rng.from_seed(0)).options.get("method") == "layers"


HORIZON = 8.0


@dataclass(frozen=True)
class Dispute:
    """A prediction of a proved theorem that a run, or another theorem, contradicts."""

    system: int
    kind: str
    theorem: str
    reason: str


@dataclass(frozen=True)
class Agreement:
    """Comparison of predictions and runs: systems, those that a proved theorem covers, predictions, and disputes."""

    systems: int
    covered: int
    predictions: int
    kinds: dict[str, int]
    disputes: tuple[Dispute, ...]

    def row(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def random_system(rng: Rng) -> tuple[str, Case]:
    """Draw a system of a random kind."""
    n, d = rng.sizes(((3, 4), (5, 4)))
    state, options = rng.tokens(n, d), dict(STOP_FAR_AWAY)
    kind = ("generic", "metric", "lopsided", "shared", "causal", "rotary", "sphere", "biased")[int(rng.integers(8))]
    sign = 1.0 if rng.random() < 0.5 else -1.0
    metric = rng.indefinite(d) if rng.random() < 0.3 else rng.definite(d, 1.0 if rng.random() < 0.5 else -1.0)
    law = rng.metric_law(metric, sign * rng.definite(d) + rng.skew(d, 0.3))
    if kind == "generic":
        law = Attention.random(d, 2, seed=int(rng.integers(1 << 31)))
    elif kind == "lopsided":
        law = rng.metric_law(metric + rng.skew(d, 0.7), sign * rng.definite(d) + rng.skew(d, 0.7))
    elif kind == "shared":
        law = rng.shared_metric_law(metric, 2, sign)
    elif kind == "causal":
        law = replace(law, mask="causal")
    elif kind == "rotary":
        law = replace(law, positions=Rotary(10.0), mask="causal" if rng.random() < 0.5 else None)
    elif kind == "biased":
        law = replace(law, query_bias=torch.from_numpy(rng.standard_normal(d)))
    elif kind == "sphere":
        law = Attention.isotropic(d, float(rng.uniform(-2.0, 4.0)), mask="causal" if rng.random() < 0.5 else None)
        tokens = Tokens.hemisphere if rng.random() < 0.5 else Tokens.uniform
        state, options = tokens(n, d, seed=int(rng.integers(1 << 31))), {}
        return kind, Case(law, state, Sphere(), HORIZON, {"stop": ("consensus", "steady")})
    return kind, Case(law, state, horizon=HORIZON, options={**options, "stop": ("collapsed", "steady")})


def measure_agreement(
    systems: int = 200, seed: int = 0, progress: Callable[[int, int], object] = lambda done, total: None
) -> Agreement:
    """Predict the fates of random systems, integrate them and compare; ``progress(done, systems)`` is called for each."""
    drawn = [random_system(Rng.from_seed([seed, index])) for index in range(systems)]
    runs = integrate([case for _, case in drawn])
    disputes: list[Dispute] = []
    kinds: dict[str, int] = {}
    covered = predictions = 0
    for index, ((kind, case), run) in enumerate(zip(drawn, runs, strict=True)):
        progress(index, systems)
        kinds[kind] = kinds.get(kind, 0) + 1
        found = Prediction(tuple(apply_theorem(theorem, case) for theorem in list_theorems()))
        proved = [item for item in found.applicable if item.theorem.status.is_proved]
        covered, predictions = covered + bool(proved), predictions + len(proved)
        reasons = [
            (f"{one.theorem.key} and {other.theorem.key}", "they exclude each other")
            for one, other in found.contradictions
            if one in proved and other in proved
        ]
        reasons += [
            (item.theorem.key, reason)
            for item in proved
            for reason in _list_contradictions(item.theorem.key, case, run)
        ]
        disputes += [Dispute(index, kind, key, reason) for key, reason in reasons]
    return Agreement(systems, covered, predictions, kinds, tuple(disputes))


def _list_contradictions(key: str, case: Case, run: Trajectory) -> Sequence[str]:
    """Return the reasons why a run contradicts a theorem that applies to it."""
    theorem = next(item for item in list_theorems() if item.key == key)
    evidence = run if theorem.gather is integrate else theorem.gather([case])[0]
    violated = [item for item in theorem.conclude(case, evidence) if not item.asymptotic and not item.holds]
    reasons = [f"{item.name}: margin {item.margin:.3g}" for item in violated]
    against = find_contradiction(theorem.predict_fate(case), run)
    return [*reasons, *([] if against is None else [against])]
