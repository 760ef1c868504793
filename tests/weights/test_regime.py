"""Regimes: reduced formulas against brute force, invariance, the inertia law, labels, and what cannot be decided."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import attractor as at
from attractor.theory.sampling import Rng
from attractor.weights.factors import factorize, separate_heads
from attractor.weights.layers import Contraction, measure_contraction, metric_form, rotation, shared_metric
from attractor.weights.spectra import compress_product, form, spectrum

EYE = torch.eye(3, dtype=torch.float64)


def normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


def multi_head(rng: np.random.Generator, d: int = 16, h: int = 3, k: int = 4, r: int = 5, **options) -> at.Attention:
    """Heads with factored values; k and r differ on purpose."""
    parts = (normal(rng, h, k, d), normal(rng, h, k, d), normal(rng, h, r, d))
    return at.Attention(*parts, output=normal(rng, h, d, r), scale=0.3, **options)


def brute(law: at.Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """W and V of every head, (h, d, d)."""
    value = torch.einsum("hdr,hre->hde", law.output, law.value) if law.output is not None else law.value
    return law.scale * torch.einsum("hkd,hke->hde", law.query, law.key), value


def eigenvalues(matrix: torch.Tensor) -> np.ndarray:
    return np.linalg.eigvalsh(((matrix + matrix.mT) / 2).numpy())


def assert_form_is(found, matrix: torch.Tensor) -> None:
    values, scale = eigenvalues(matrix), float(matrix.norm())
    clear = 1e-9 * scale
    assert found.inertia == ((values > clear).sum(), (values < -clear).sum(), (abs(values) <= clear).sum())
    assert found.low == pytest.approx(values[0], abs=1e-10 * scale)
    assert found.high == pytest.approx(values[-1], abs=1e-10 * scale)
    assert found.index == pytest.approx(values.sum() / abs(values).sum(), abs=1e-10)
    assert found.norm == pytest.approx(scale, rel=1e-10)
    assert found.trace == pytest.approx(float(matrix.trace()), abs=1e-10 * scale)
    assert found.asymmetry == pytest.approx(float((matrix - matrix.mT).norm()) / 2 / scale, abs=1e-10)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("d", "h", "k", "r"), [(16, 3, 4, 5), (12, 2, 8, 3), (24, 4, 2, 6), (10, 1, 3, 3)])
def test_small_matrices_know_what_large_ones_know(seed: int, d: int, h: int, k: int, r: int) -> None:
    law = multi_head(np.random.default_rng(seed), d, h, k, r)
    found, (interactions, values) = at.regime(law), brute(law)
    for head, interaction, value in zip(found.heads, interactions, values, strict=True):
        assert_form_is(head.interaction, interaction)
        assert_form_is(head.metric, value.mT @ interaction)
        nonzero = np.sort_complex(np.linalg.eigvals(value.numpy()))
        nonzero = nonzero[abs(nonzero) > 1e-9 * abs(nonzero).max()]
        assert head.value.abscissa == pytest.approx(nonzero.real.max(), abs=1e-10 * float(value.norm()))
        assert head.value.radius == pytest.approx(abs(1 + nonzero).max(), rel=1e-10)
    whole = found.layer
    assert_form_is(whole.interaction, interactions.sum(0))
    assert_form_is(whole.metric, (values.mT @ interactions).sum(0))
    total = np.linalg.eigvals(values.sum(0).numpy())
    assert whole.value.radius == pytest.approx(abs(1 + total).max(), rel=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_a_lone_head_is_its_reduced_system(seed: int) -> None:
    """Tokens in the range of the output move as the reduced law says."""
    law = multi_head(np.random.default_rng(seed), h=1)
    (factors,) = separate_heads(factorize(law))
    head, output = factors.grams(), factors.output
    small = at.Tokens.gaussian(6, head.rank, seed=seed)
    lifted = at.velocity(law, at.Tokens(small.points @ output.mT))
    reduced = at.Attention(head.reduced_query, head.reduced_key, head.reduced_value)
    torch.testing.assert_close(lifted, at.velocity(reduced, small) @ output.mT, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("d", "r"), [(9, 2), (9, 9), (6, 4)])
def test_the_shared_metric_is_the_least_squares_one(seed: int, d: int, r: int) -> None:
    law = multi_head(np.random.default_rng(seed), d, 3, 3, r)
    shared, (interactions, values) = shared_metric(separate_heads(factorize(law))), brute(law)
    left, right = torch.cat(tuple(values), -1).mT.numpy(), torch.cat(tuple(interactions), -1).mT.numpy()
    best, *_ = np.linalg.lstsq(left, right, rcond=1e-12)
    assert shared.residual == pytest.approx(np.linalg.norm(right - left @ best) / np.linalg.norm(right), abs=1e-9)
    assert_form_is(metric_form(shared), torch.from_numpy(best.T.copy()))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_heads_that_share_a_metric_are_certified(sign: float) -> None:

    rng = Rng.from_seed(3)
    law = rng.shared_metric_law(rng.definite(5, sign), heads=3)
    found = at.regime(law)
    assert found.layer.residual < 1e-12
    assert (found.label, found.certificate) == (
        ("divergent", "regimes.T3") if sign > 0 else ("convergent", "regimes.T1")
    )


def changed_gauge(law: at.Attention, rng: np.random.Generator) -> at.Attention:
    """Q to SQ and K to S^-T K; V' to TV' and O to OT^-1."""
    one = torch.eye(law.query.shape[-2], dtype=torch.float64) + 0.4 * normal(
        rng, *law.query.shape[:1], law.query.shape[-2], law.query.shape[-2]
    )
    two = torch.eye(law.value.shape[-2], dtype=torch.float64) + 0.4 * normal(
        rng, *law.value.shape[:1], law.value.shape[-2], law.value.shape[-2]
    )
    return replace(
        law,
        query=one @ law.query,
        key=torch.linalg.inv(one).mT @ law.key,
        value=two @ law.value,
        output=law.output @ torch.linalg.inv(two),
    )


def changed_basis(law: at.Attention, rng: np.random.Generator) -> at.Attention:
    """Tokens x to Ux with U orthogonal."""
    turn = torch.linalg.qr(normal(rng, law.dim, law.dim)).Q
    parts = {name: getattr(law, name) @ turn.mT for name in ("query", "key", "value")}
    return replace(law, **parts, output=turn @ law.output)


@pytest.mark.parametrize("change", [changed_gauge, changed_basis])
def test_nothing_depends_on_gauge_or_basis(change, rng: np.random.Generator) -> None:
    law = multi_head(rng)
    before, after = at.regime(law).row(), at.regime(change(law, rng)).row()
    for one, other in zip([before["layer"], *before["heads"]], [after["layer"], *after["heads"]], strict=True):
        for name, value in one.items():
            if isinstance(value, float):
                assert other[name] == pytest.approx(value, rel=1e-8, abs=1e-9), name
            elif name != "why":
                assert other[name] == value, name


def test_values_may_be_folded_or_factored(rng: np.random.Generator) -> None:
    law = multi_head(rng)
    folded = at.regime(replace(law, value=law.value_map, output=None))
    for one, other in zip(at.regime(law).heads, folded.heads, strict=True):
        assert (one.rank, one.label.name) == (other.rank, other.label.name)
        assert one.reduced_metric.low == pytest.approx(other.reduced_metric.low, rel=1e-9)
        assert one.value.abscissa == pytest.approx(other.value.abscissa, rel=1e-9)


@pytest.mark.theorem
def test_a_random_head_has_as_many_positive_as_negative_directions(rng: np.random.Generator) -> None:
    for k in (4, 8, 16):
        head = at.regime(multi_head(rng, 32, 1, k, k)).heads[0]
        assert head.interaction.inertia == (k, k, 32 - 2 * k)
        assert head.interaction.sign == "indefinite"
    query = normal(rng, 4, 32)
    psd = at.Attention(query, query, EYE.new_tensor(np.eye(32)))
    assert at.regime(psd).heads[0].interaction.inertia == (4, 0, 28)
    assert at.regime(psd).heads[0].interaction.index == pytest.approx(1.0)


@pytest.mark.theorem
def test_inertia_law_on_a_thousand_triples() -> None:
    """T5, and the inverse-free form: sym A, sym V'W and the spectrum of V count the same."""
    rng = np.random.default_rng(11)
    for _ in range(1000):
        d = int(rng.integers(2, 9))
        basis, skew = rng.standard_normal((d, d)), rng.standard_normal((d, d))
        interaction = basis @ basis.T + 0.05 * np.eye(d) + (skew - skew.T)
        signs = np.where(rng.random(d) < 0.5, 1.0, -1.0) * rng.uniform(0.2, 2.0, d)
        frame = np.linalg.qr(rng.standard_normal((d, d)))[0]
        metric = frame @ np.diag(signs) @ frame.T
        value = np.linalg.solve(metric, interaction)
        positive = int((signs > 0).sum())
        assert form(torch.from_numpy(value.T @ interaction)).inertia == (positive, d - positive, 0)
        assert int((np.linalg.eigvals(value).real > 0).sum()) == positive


def test_congruence_without_symmetry(rng: np.random.Generator) -> None:
    for _ in range(200):
        interaction, value = normal(rng, 5, 5), normal(rng, 5, 5)
        metric = torch.linalg.solve(value, interaction, left=False)
        assert form(metric, band=1e-12).inertia == form(value.mT @ interaction, band=1e-12).inertia


LABELS = [
    ({}, -EYE, "convergent", "regimes.T1"),
    ({}, EYE, "divergent", "regimes.T3"),
    ({"scale": -1.0}, -EYE, "polarising", "regimes.T4"),
    ({"scale": -1.0}, EYE, "escaping", None),
    ({}, torch.diag(EYE.new_tensor([1.0, -1.0, -2.0])), "intermediate", "regimes.T3"),
    ({"mask": "causal"}, -EYE, "convergent", "regimes.T8"),
    ({"mask": "causal"}, EYE, "divergent", "regimes.T8.converse"),
    ({"mask": "causal", "scale": -1.0}, -EYE, "convergent", "regimes.T8"),
    ({"query_bias": EYE[0]}, -EYE, "convergent", None),
    ({"key_bias": EYE[0]}, -EYE, "convergent", "regimes.T1"),
    ({"kernel": "sigmoid"}, -EYE, "undefined", None),
    ({"positions": at.Absolute(EYE, on="qk")}, -EYE, "convergent", None),
    ({"positions": at.Absolute(EYE, when="input")}, -EYE, "convergent", "regimes.T1"),
]


@pytest.mark.parametrize(("options", "value", "label", "certificate"), LABELS)
def test_labels(options: dict, value: torch.Tensor, label: str, certificate: str | None) -> None:
    found = at.regime(at.Attention(EYE, EYE, value, **options))
    assert (found.label, found.certificate) == (label, certificate)


@pytest.mark.parametrize(("degrees", "label"), [(44.0, "convergent"), (46.0, "escaping")])
def test_the_rotation_counterexample_is_not_called_convergent(degrees: float, label: str) -> None:
    """W = R(a), A = -R(-a): both symmetric parts say collapse, beyond 45 degrees the value says no; neither is certified."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    law = at.Attention(torch.eye(2, dtype=torch.float64), turn, torch.linalg.solve(-turn.mT, turn))
    found = at.regime(law)
    assert (found.label, found.certificate) == (label, None)
    assert (found.heads[0].reduced_metric.sign, found.heads[0].reduced_interaction.sign) == ("negative", "positive")
    assert found.heads[0].value.abscissa == pytest.approx(-np.cos(2 * np.radians(degrees)))


def test_a_singular_value_gets_an_answer_without_an_inverse() -> None:
    law = at.Attention(EYE, EYE, torch.diag(EYE.new_tensor([-1.0, -1.0, 0.0])))
    found = at.regime(law)
    assert (found.heads[0].rank, found.heads[0].label.name) == (2, "convergent")
    assert found.layer.value.stability == "marginal"
    nilpotent = at.regime(at.Attention(EYE, EYE, EYE.roll(1, 0) * EYE.new_tensor([[1.0], [0.0], [0.0]]).mT))
    assert nilpotent.heads[0].metric_asymmetry is None
    assert nilpotent.heads[0].label.name == "undetermined"
    assert at.regime(at.Attention(EYE, EYE, 0 * EYE)).label == "undetermined"


def test_an_eigenvalue_within_rounding_is_not_guessed() -> None:
    tiny = torch.diag(EYE.new_tensor([1.0, 1.0, 1e-13]))
    found = at.regime(at.Attention(EYE, tiny, -EYE))
    assert found.label == "undetermined"
    assert found.certificate is None
    assert at.regime(at.Attention(EYE, tiny, -EYE), tolerance=1e-14).label == "convergent"
    single = at.Attention(EYE.float(), torch.diag(torch.tensor([1.0, 1.0, 1e-6])), -EYE.float())
    assert at.regime(single).label == "undetermined"


def test_single_precision_weights_have_the_same_labels(rng: np.random.Generator) -> None:
    for _ in range(20):
        law = at.Attention(EYE, normal(rng, 3, 3), normal(rng, 3, 3))
        single = at.Attention(EYE.float(), law.key.float(), law.value.float())
        assert at.regime(single).label in (at.regime(law).label, "undetermined")


@pytest.mark.parametrize("partial", [None, 2])
def test_rotary_family_against_brute_force(partial: int | None, rng: np.random.Generator) -> None:
    positions = at.Rotary(100.0, partial)
    law = multi_head(rng, 20, 2, 4, 4, positions=positions)
    for index, head in enumerate(at.regime(law).heads):
        assert {row.offset for row in head.offsets} >= {0, 1, -1, 64, -64}
        for row in head.offsets:
            turn = rotation(positions, 4, row.offset)
            whole = law.scale * law.query[index].mT @ turn @ law.key[index]
            still = law.scale * law.query[index].mT @ law.key[index]
            values = eigenvalues(whole)
            assert row.low == pytest.approx(values[0], abs=1e-10 * float(whole.norm()))
            assert row.index == pytest.approx(values.sum() / abs(values).sum(), abs=1e-10)
            assert row.trace == pytest.approx(float(whole.trace()), abs=1e-9)
            assert row.change == pytest.approx(float((whole - still).norm() / still.norm()), abs=1e-10)


def test_an_offset_is_what_the_law_does(rng: np.random.Generator) -> None:
    """x' W(j - l) y is the score of a query at l and a key at j."""
    positions, (x, y) = at.Rotary(50.0), normal(rng, 2, 6)
    query, key = normal(rng, 4, 6), normal(rng, 4, 6)
    law = at.Attention(query, key, torch.eye(6, dtype=torch.float64), positions=positions)
    tokens = at.Tokens(torch.stack((x, y)), positions=torch.tensor([3.0, 10.0], dtype=torch.float64))
    pairing, _ = law._pairing(tokens, False)
    score = float((pairing.q @ pairing.k.mT)[..., 0, 1])
    assert score == pytest.approx(float(x @ query.mT @ rotation(positions, 4, 7) @ key @ y))


def test_rotary_is_never_certified_but_by_a_mask() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    full = at.regime(at.Attention(eye, eye, -eye, positions=at.Rotary()))
    assert (full.label, full.certificate) == ("position dependent", None)
    causal = at.regime(at.Attention(eye, eye, -eye, positions=at.Rotary(), mask="causal"))
    assert (causal.label, causal.certificate) == ("convergent", "regimes.T8")
    assert max(row.offset for row in causal.heads[0].offsets) == 0


def test_several_causal_heads_need_a_common_lyapunov_matrix(rng: np.random.Generator) -> None:
    heads = torch.stack((-EYE, -EYE))
    stack = torch.stack((EYE, EYE))
    assert at.regime(at.Attention(stack, stack, heads, mask="causal")).certificate == "regimes.T8"
    shear = EYE.clone()
    shear[0, 1] = 9.0
    sheared = torch.stack((-shear, -shear.mT - 9 * EYE))
    found = at.regime(at.Attention(stack, stack, sheared, mask="causal"))
    assert (found.label, found.certificate) == ("convergent", None)
    assert "T8 needs one norm that no head lets grow" in found.why


@pytest.mark.theorem
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_causal_heads_of_one_metric_share_its_norm(rng: np.random.Generator, sign: float) -> None:
    """V_h = B W_h with sym W_h >= 0 > B: |x| may grow under a head, the norm of -1/B may not, and every token falls to zero."""
    eye = torch.eye(4, dtype=torch.float64)
    root = torch.from_numpy(rng.normal(size=(4, 4))) * torch.tensor([1.2, 1.0, 0.7, 0.5])
    inverse = -root @ root.mT - 0.3 * eye
    inner = torch.linalg.qr(torch.from_numpy(rng.normal(size=(4, 4))))[0].unflatten(1, (2, 2)).transpose(0, 1)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    interactions = inner @ (torch.eye(2, dtype=torch.float64) + 0.4 * turn) @ inner.mT
    values = inverse @ interactions
    assert float(torch.linalg.eigvalsh((values + values.mT) / 2).max()) > 0.1
    # whatever the interaction is: its sign turns that of the metric
    law = at.Attention(torch.stack((eye, eye)), sign * interactions, values, mask="causal", positions=at.Rotary())
    found = at.regime(law)
    assert (found.label, found.certificate) == ("convergent", "regimes.T8")
    assert "no head lets the metric that the heads share grow" in found.why
    start = at.Tokens(0.3 * torch.from_numpy(rng.normal(size=(3, 4))))
    assert "regimes.T8" in {item.theorem.key for item in at.predict(law, start).applicable}
    if sign > 0:
        run = at.flow(law, start, until=12.0, rtol=1e-4, atol=1e-7, save=[12.0])
        assert float(run.final.points.norm()) < 0.3 * float(start.points.norm())
    weaker = at.Attention(torch.stack((eye, eye)), sign * interactions, values + 0.2 * eye, mask="causal")
    assert at.regime(weaker).certificate != "regimes.T8"


def test_no_norm_without_a_definite_metric() -> None:
    values = torch.stack((-EYE, -EYE))
    assert measure_contraction(values, torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))) is None
    assert measure_contraction(values) == measure_contraction(values, -EYE) == Contraction(-1.0, 1.0)


def test_a_norm_is_folded(rng: np.random.Generator) -> None:
    """Attention after a LayerNorm is the folded attention of the token before its gain and centring, up to the division."""
    gain, bias = 1 + 0.3 * normal(rng, 16), 0.2 * normal(rng, 16)
    norm = at.LayerNorm(gain, bias)
    for law in (multi_head(rng), at.Attention.random(16, 2)):
        points = normal(rng, 5, 16)
        points = points - points.mean(-1, keepdim=True)
        points = points / points.square().mean(-1, keepdim=True).sqrt()
        after = at.velocity(law, at.Tokens(norm(points)))
        torch.testing.assert_close(
            at.velocity(at.weights.fold_norm(law, norm), at.Tokens(points)), after, rtol=1e-10, atol=1e-10
        )
        block = at.Block(law, placement="pre", norms=norm)
        assert at.regime(block).row() == at.regime(at.weights.fold_norm(law, norm)).row()


def test_layers_come_as_rows(rng: np.random.Generator) -> None:
    found = at.regimes(at.Stack((multi_head(rng), multi_head(rng))))
    assert [row.layer.layer for row in found] == [0, 1]
    text = json.dumps([row.row() for row in found], allow_nan=False)
    assert json.loads(text)[1]["heads"][2]["head"] == 2

    class Layer:
        def law(self) -> at.Attention:
            return multi_head(np.random.default_rng(0))

    assert at.regime(Layer()).row() == at.regime(multi_head(np.random.default_rng(0))).row()


def test_the_published_definition_is_on_offer(rng: np.random.Generator) -> None:
    law = multi_head(rng, 12, 3, 4, 4)
    found = at.regime(law, mode="stacked").layer
    metric = brute(law)[0].sum(0) @ torch.linalg.inv(law.value.reshape(12, 12))
    assert_form_is(found.stacked_metric, metric)
    assert found.stacked_condition == pytest.approx(np.linalg.cond(law.value.reshape(12, 12).numpy()))
    with pytest.raises(at.errors.UnsupportedError, match="square"):
        at.regime(multi_head(rng), mode="stacked")


def test_bad_input_gets_a_sentence() -> None:
    with pytest.raises(at.errors.InputError, match="Stack or several laws"):
        at.regimes(at.Attention(EYE, EYE, EYE))
    with pytest.raises(at.errors.InputError, match="about Attention"):
        at.regime(at.Affine(EYE))
    with pytest.raises(at.errors.InputError, match="value must be"):
        at.regime(at.Attention(EYE, EYE, EYE[:2]))
    with pytest.raises(at.errors.InputError, match="holds NaN"):
        at.regime(at.Attention(EYE, EYE * float("nan"), EYE))
    with pytest.raises(at.errors.InputError, match="tolerance"):
        at.regime(at.Attention(EYE, EYE, EYE), tolerance=2.0)
    members = at.Attention(EYE.expand(2, 1, 3, 3), EYE.expand(2, 1, 3, 3), EYE.expand(2, 1, 3, 3))
    with pytest.raises(at.errors.UnsupportedError, match="ensemble members"):
        at.regime(members)


def test_forms_and_spectra_of_known_matrices() -> None:
    seen = form(torch.diag(EYE.new_tensor([2.0, -1.0, 0.0])))
    assert (seen.inertia, seen.sign, seen.index) == ((1, 1, 1), "indefinite", pytest.approx(1 / 3))
    assert form(EYE, zeros=2).sign == "semidefinite"
    turn = torch.tensor([[-1.0, -2.0], [2.0, -1.0]], dtype=torch.float64)
    assert spectrum(turn).real is None
    assert spectrum(turn).radius == pytest.approx(2.0)
    assert spectrum(turn, zeros=1).stability == "marginal"
    assert compress_product(EYE[:1], EYE[1:2]).shape == (2, 2)


def test_a_regime_is_a_table() -> None:
    pytest.importorskip("pandas")
    found = at.regime(multi_head(np.random.default_rng(0)))
    frame = found.frame()
    assert list(frame["label"]) == [head.label.name for head in found.heads]
    assert "offsets" not in frame
