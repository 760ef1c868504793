"""Hardmax attention against plain numpy, as the limit of softmax, and what it rejects."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import attractor as at
from attractor.cli.main import run
from attractor.errors import InputError, UnsupportedError
from attractor.laws.kernels import hardmax


def reference(
    law: at.Attention, x: np.ndarray, masses: np.ndarray | None, visible: np.ndarray, exclude_self: bool
) -> np.ndarray:
    """Weights (h, n, n) by loops over rows, ties found at 1e-9."""
    query, key = (np.asarray(part).reshape(-1, *part.shape[-2:]) for part in (law.query, law.key))
    n = len(x)
    weights = np.zeros((len(query), n, n))
    for h in range(len(query)):
        scores = float(law.scale) * (x @ query[h].T) @ (x @ key[h].T).T
        for i in range(n):
            seen = visible[i] & (np.arange(n) != i if exclude_self else True)
            seen = seen & (True if masses is None else masses > 0)
            top = scores[i][seen].max()
            tied = seen & (scores[i] >= top - 1e-9)
            share = tied * (np.ones(n) if masses is None else masses)
            weights[h, i] = share / share.sum()
    return weights


def masks(rng: np.random.Generator, n: int) -> dict[str, tuple[object, np.ndarray]]:
    i, j = np.indices((n, n))
    table = rng.random((n, n)) < 0.4
    table[np.arange(n), (np.arange(n) + 1) % n] = True  # every token sees another one
    return {
        "none": (None, np.ones((n, n), dtype=bool)),
        "causal": ("causal", j <= i),
        "window": ("window:3", (j <= i) & (i - j < 3)),
        "both sides": (at.Window(2, causal=False), abs(i - j) < 2),
        "boolean": (torch.from_numpy(table), table),
    }


@pytest.mark.parametrize("mask", ["none", "causal", "window", "both sides", "boolean"])
@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_against_numpy(rng: np.random.Generator, mask: str, exclude_self: bool, weighted: bool, ties: bool) -> None:
    n, d, heads = 9, 3, 2
    given, visible = masks(rng, n)[mask]
    x = rng.integers(-2, 3, (n, d)).astype(float) if ties else rng.standard_normal((n, d))
    draw = (
        (lambda: rng.integers(-1, 2, (heads, 2, d)).astype(float))
        if ties
        else (lambda: rng.standard_normal((heads, 2, d)))
    )
    query, key, value = draw(), draw(), rng.standard_normal((heads, d, d))
    masses = rng.random(n) if weighted else None
    law = at.Attention(query, key, value, kernel=at.Hardmax(exclude_self), mask=given, scale=-0.7 if ties else 1.3)
    tokens = at.Tokens(x, masses)
    if exclude_self and mask in ("causal", "window"):  # the first token sees only itself
        with pytest.raises(InputError, match="every token must see a key"):
            law.velocity(tokens)
        return
    wanted = reference(law, x, masses, visible, exclude_self)
    np.testing.assert_allclose(law.weights(tokens).numpy(), wanted, rtol=1e-14, atol=0)
    moved = np.einsum("hij,hab,jb->ia", wanted, value, x)
    np.testing.assert_allclose(law.velocity(tokens).numpy(), moved, rtol=1e-12, atol=1e-13)


def test_tolerance_of_ties(rng: np.random.Generator) -> None:
    """Keys on a line orthogonal to the query have equal scores, but not equal floating-point scores: those tie with a tolerance."""
    query = rng.standard_normal(8)
    along = rng.standard_normal((50, 8))
    along -= np.outer(along @ query, query) / (query @ query)
    x = np.vstack([query, query / 3 + along])  # all keys but the first have the score |query|^2 / 3
    eye = np.eye(8)
    visible = np.ones((51, 51), dtype=bool)
    visible[:, 0] = False
    for dtype in (torch.float64, torch.float32):
        tokens, kernel = at.Tokens(x, dtype=dtype), at.Hardmax(tie_tolerance=32 * torch.finfo(dtype).eps)
        weights = at.Attention(eye, eye, eye, kernel=kernel, mask=torch.from_numpy(visible)).weights(tokens)
        assert torch.equal(weights[0, 0] > 0, torch.tensor([False] + [True] * 50))
        exact = at.Attention(eye, eye, eye, kernel="hardmax", mask=torch.from_numpy(visible)).weights(tokens)
        assert int((exact[0, 0] > 0).sum()) < 50
    x[3] += 1e-9 * query  # a difference above the tolerance
    kernel = at.Hardmax(tie_tolerance=1e-14)
    weights = at.Attention(eye, eye, eye, kernel=kernel, mask=torch.from_numpy(visible)).weights(at.Tokens(x))
    assert weights[0, 0].nonzero().flatten().tolist() == [3]
    with pytest.raises(InputError, match="tie_tolerance"):
        at.Hardmax(tie_tolerance=-1.0)


def test_equal_keys_tie_wherever_they_stand(rng: np.random.Generator) -> None:
    """The rounding of a score does not depend on the place of the key, so that copies of a token share its weight."""
    n, d = 67, 7
    x = rng.standard_normal((n, d))
    x[[3, 31, 64, 66]] = 10 * x[0]
    law = at.Attention(*rng.standard_normal((2, 1, d, d)), rng.standard_normal((1, d, d)), kernel="hardmax")
    weights = law.weights(at.Tokens(x))[0].numpy()
    assert (weights[:, [3, 31, 64, 66]].std(-1) == 0).all()
    assert (weights[:, 3] == 0.25).any()


def test_equal_tokens_tie_on_other_processors() -> None:
    """Without AVX-512 products of matrices in MKL round the last rows differently."""
    name = f"{__file__}::test_equal_keys_tie_wherever_they_stand"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(
        command, env={**os.environ, "MKL_CBWR": "COMPATIBLE"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_limit_of_softmax(rng: np.random.Generator) -> None:
    tokens = at.Tokens(rng.standard_normal((12, 4)), rng.random(12))
    parts = rng.standard_normal((3, 2, 4, 4))
    wanted = at.Attention(*parts, kernel="hardmax").velocity(tokens)
    errors = [
        float((at.Attention(*parts, scale=beta).velocity(tokens) - wanted).abs().max()) for beta in (1e1, 1e3, 1e6)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12


def test_ensembles(rng: np.random.Generator) -> None:
    x, masses = rng.standard_normal((3, 2, 7, 4)), rng.random((3, 2, 7))
    law = at.Attention(*rng.standard_normal((3, 2, 4, 4)), kernel="hardmax", mask="causal", positions=at.Rotary())
    together = law.velocity(at.Tokens(x, masses))
    for index in np.ndindex(3, 2):
        torch.testing.assert_close(
            together[index], law.velocity(at.Tokens(x[index], masses[index])), rtol=0, atol=1e-14
        )


def test_blocks_of_rows(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result does not depend on the blocks, and no block is larger than the limit or one row."""
    tokens = at.Tokens(rng.standard_normal((2, 30, 3)), rng.random((2, 30)))
    law = at.Attention(*rng.standard_normal((3, 2, 3, 3)), kernel=at.Hardmax(exclude_self=True))
    whole = law.velocity(tokens), law.velocity(tokens, skip_self=True), law.weights(tokens)
    sizes, amax = [], torch.Tensor.amax

    def spied(self: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        sizes.append(self.numel())
        return amax(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "amax", spied)
    for pairs in (1, 500):
        monkeypatch.setattr(hardmax, "PAIRS", pairs)
        parts = law.velocity(tokens), law.velocity(tokens, skip_self=True), law.weights(tokens)
        for part, wanted in zip(parts, whole, strict=True):
            torch.testing.assert_close(part, wanted, rtol=0, atol=1e-15)
    assert max(sizes) <= 500


def test_skip_self_leaves_the_normaliser(rng: np.random.Generator) -> None:
    """On the sphere the self term has no tangent part, with or without ties."""
    tokens = at.Tokens.uniform(20, 3, seed=1)
    law, sphere = at.Attention.isotropic(3, 1.0, kernel="hardmax"), at.Sphere()
    assert (
        float(law.velocity(tokens, skip_self=True).abs().max()) == 0.0
    )  # the largest score of a unit vector is its own
    tangent = sphere.tangent(tokens.points, law.velocity(tokens))
    assert float(tangent.abs().max()) < 1e-15


def test_zero_masses_are_not_seen() -> None:
    eye = np.eye(2)
    law = at.Attention(eye, eye, eye, kernel="hardmax")
    tokens = at.Tokens([[1.0, 0.0], [5.0, 0.0], [0.0, 1.0]], masses=[0.5, 0.0, 0.5])
    assert law.weights(tokens)[0, 0].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_gradients_are_rejected() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    law = at.Attention.isotropic(3, 1.0, kernel="hardmax")
    with pytest.raises(UnsupportedError, match="no gradient"):
        law.velocity(at.Tokens(x))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="no gradient"):
        law.velocity(at.Tokens.unchecked(forward_ad.make_dual(x.detach(), torch.ones_like(x))))
    with torch.no_grad():
        law.velocity(at.Tokens(x))
    value = torch.eye(3, dtype=torch.float64, requires_grad=True)  # the velocity is linear in V
    law = at.Attention(np.eye(3), np.eye(3), value, kernel="hardmax")
    law.velocity(at.Tokens(x.detach())).sum().backward()
    assert value.grad is not None
    layer = at.nn.DefiniteAttention(4, 2, regime="divergent", kernel="hardmax")
    with pytest.raises(UnsupportedError, match="no gradient"):
        layer(torch.randn(6, 4))


def test_what_is_not_defined() -> None:
    law, tokens = at.Attention.isotropic(2, 1.0, kernel="hardmax"), at.Tokens.uniform(5, 2, seed=0)
    with pytest.raises(UnsupportedError, match="no interaction energy is known for the hardmax kernel"):
        at.energy(tokens, law)
    with pytest.raises(UnsupportedError, match="no largest score"):
        at.flow(law, at.Gaussian([0.0, 0.0], np.eye(2)), until=1.0)
    with pytest.raises(UnsupportedError, match="not for hardmax"):
        at.meanfield.dobrushin_constants(law, 1.0)
    with pytest.raises(UnsupportedError, match="no such sum"):
        at.partition(tokens, law)
    assert float(at.attention_entropy(tokens, law)) == 0.0
    assert float(at.self_weight(tokens, law)) == 1.0
    assert at.meanfield.support_rate(law) == 1.0  # rows are convex combinations
    at.predict(law, tokens, at.Sphere())


def test_merging() -> None:
    """Merging coinciding tokens is exact, on request only; with exclude_self it is rejected."""
    points = np.repeat(np.random.default_rng(3).standard_normal((6, 2)) + np.array([0.0, 5.0]), 2, axis=0)
    query, key = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])  # all tokens follow the largest first coordinate
    law = at.Attention(query, key, np.eye(2), kernel="hardmax")
    options = {"until": 0.5, "save": 3, "max_evaluations": 10_000}
    assert at.flow(law, at.Tokens(points), **options).stats.merges == 0
    merged = at.flow(law, at.Tokens(points), merge=1e-12, **options)
    alone = at.flow(law, at.Tokens(points[::2]), **options)
    assert merged.stats.merges == 6
    np.testing.assert_allclose(merged.points[:, ::2], alone.points, rtol=1e-7)
    assert not law.is_attracting()
    blind = at.Attention(query, key, np.eye(2), kernel=at.Hardmax(exclude_self=True))
    with pytest.raises(UnsupportedError, match="see each other"):
        at.flow(blind, at.Tokens(points), merge=1e-12, **options)


def test_a_jump_is_crossed_to_the_tolerance() -> None:
    """In coordinates (x, y, r, c) every token moves by y' = r and x' = r of the token with the largest y, which changes at t = 1/2."""
    unit = np.eye(4)
    value, drift = np.outer(unit[0], unit[2]), np.outer(unit[1], unit[2])
    law = at.Attention(unit[[3]], unit[[1]], value, kernel="hardmax") + at.Affine(drift)
    run = at.flow(law, at.Tokens([[0.0, 1.0, 0.0, 1.0], [0.0, 0.5, 1.0, 1.0]]), until=1.0, max_evaluations=10_000)
    assert run.outcome.name == "reached"
    assert run.stats.rejected > 0
    np.testing.assert_allclose(run.final.points[:, 0], [0.5, 0.5], rtol=1e-6)


def averaging_layers(dim: int, alpha: float) -> tuple[at.Law, float]:
    """The law and the step of x <- x + alpha / (1 + alpha) (mean of the maxima of x - x)."""
    law = at.Attention.isotropic(dim, 1.0, kernel="hardmax") + at.Affine(-np.eye(dim))
    return law, alpha / (1 + alpha)


@pytest.mark.theorem
def test_two_leaders_share_a_follower() -> None:
    """A18: an exact tie of two leaders draws the third token to their mean."""
    law, step = averaging_layers(2, 1.0)
    tokens = at.Tokens([[1.0, 1.0], [-1.0, 1.0], [0.0, 0.2]])
    run = at.flow(law, tokens, until=60 * step, method="layers", step=step, stop=())
    np.testing.assert_allclose(run.final.points[2], [0.0, 1.0], atol=1e-12)
    assert torch.equal(run.final.points[:2], tokens.points[:2])
    assert at.leaders(run.final, law, each=True)[0].tolist() == [True, True, False]


@pytest.mark.theorem
def test_hardmax_layers_contract_hulls_to_leaders() -> None:
    """A19: in 200 runs no norm falls and no hull grows, leaders stay, and all tokens end at leaders."""
    runs, layers, step = 200, 120, 0.5
    law = at.Attention.isotropic(2, 1.0, kernel="hardmax") + at.Affine(-np.eye(2))
    start = at.Tokens.gaussian(12, 2, seed=3, ensemble=runs)
    run = at.flow(law, start, until=layers * step, save=layers, method="layers", step=step, stop=())
    x = run.points.numpy()
    norms = np.linalg.norm(x, axis=-1)
    assert int((np.diff(norms, axis=0) < -1e-15 * norms[1:]).sum()) == 0
    # a hull is inside another if no support function is larger
    angles = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    support = (x @ np.stack((np.cos(angles), np.sin(angles)))).max(-2)
    assert int((np.diff(support, axis=0) > 1e-15).sum()) == 0
    leads = at.leaders(run.initial, law, each=True)[:, 0].numpy()
    assert np.abs(x[-1] - x[0])[leads].max() < 1e-14
    assert leads[np.arange(runs), norms[0].argmax(-1)].all()
    for points in x[-1]:
        ends = np.unique(points.round(9), axis=0)  # one point of each cluster
        assert bool(at.leaders(at.Tokens(ends), law, each=True).all())


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--tokens", "6", "--until", "0.1", "--space", "sphere", "--json"]
    assert run([*words, "--kernel", "hardmax", "--exclude-self"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert run([*words, "--exclude-self"]) == 2
    assert "--exclude-self belongs to --kernel hardmax, not to softmax" in capsys.readouterr().err
