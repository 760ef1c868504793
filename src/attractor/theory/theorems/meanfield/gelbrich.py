"""T15: the distance of two laws is at least that of the Gaussians with their moments (Gelbrich)."""

from dataclasses import replace

from attractor.meanfield import bures_wasserstein, wasserstein
from attractor.observables import covariance, mean
from attractor.states import Gaussian, Tokens
from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite
from attractor.theory.hypotheses import FLAT, FULL, SOFTMAX, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each


def take_euler_step(case: Case) -> Tokens:
    """Return the tokens after one Euler step of size 1."""
    return Tokens(case.tokens.points + case.law.velocity(case.tokens), case.tokens.masses)


def measure_distance(case: Case) -> float:
    return float(wasserstein(case.tokens, take_euler_step(case)))


def conclude(case: Case, seen: float) -> tuple[Measurement, ...]:
    measures = (case.tokens, take_euler_step(case))
    normals = [Gaussian(mean(tokens), covariance(tokens)) for tokens in measures]
    size = max(float(tokens.points.norm(dim=-1).max()) for tokens in measures)
    least = float(bures_wasserstein(*normals))
    return (Measurement("W2 is at least the distance of the moments", (seen - least) / size, 1e-7),)


def shrink_value(case: Case) -> Case:
    return replace(case, law=replace(case.attention, value=0.05 * case.attention.value))


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(((8, 2), (12, 3)))
    return Case(rng.law(rng.matrix(d), rng.matrix(d)), rng.tokens(n, d))


THEOREM = Theorem(
    key="meanfield.T15",
    title="Moments bound the distance",
    statement=r"\(W_2(\mu, \nu) \ge W_2\big(N(\alpha_\mu, \Sigma_\mu), N(\alpha_\nu, \Sigma_\nu)\big)\): the Bures distance of the "
    r"moments of any two measures, in particular of tokens along a flow, bounds their Wasserstein distance from below.",
    citation=cite("the distance in which the mean-field limit holds"),
    status=Status.HERE,
    hypotheses=(SOFTMAX, FLAT, TOKENS, FULL, NO_BIASES_OR_POSITIONS),
    fate="identity",
    conclude=conclude,
    sample=sample,
    gather=gather_each(measure_distance),
    break_case=shrink_value,
    proof="Gelbrich's inequality.",
    time_independent=True,
)
