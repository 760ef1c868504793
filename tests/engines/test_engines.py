"""Every engine computes the sums of the contract: small problems against loops, large ones against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import oracles
from attractor.engines import attend, blockwise
from attractor.errors import InputError

MODES = ("softmax", "exponential", "sigmoid", "linear")


@dataclass(frozen=True)
class Question:
    """A random call of ``attend``; ``size`` bounds the scores."""

    mode: str = "softmax"
    n: int = 7
    m: int = 7
    d: int = 3
    c: int = 2
    lanes: tuple[tuple[int, ...], ...] = ((), (), (), ())  # leading axes of q, k, v and the bias
    size: float = 1.0
    causal: bool = False
    window: int | None = None
    visible: str = "no"  # no, shared, or lanes
    bias: str = "no"  # no, finite, or holes (some entries -inf)
    skip_self: bool = False
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]]:
        rng = np.random.default_rng(self.seed)

        def draw(*shape: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal(shape)).to(self.dtype)

        root = (self.size / self.d**0.5) ** 0.5
        q, k, v = (
            root * draw(*self.lanes[0], self.n, self.d),
            root * draw(*self.lanes[1], self.m, self.d),
            draw(*self.lanes[2], self.m, self.c),
        )
        bias = None if self.bias == "no" else self.size * draw(*self.lanes[3], self.m)
        if bias is not None and self.bias == "holes":
            bias = torch.where(torch.from_numpy(rng.random(bias.shape) < 0.4), -torch.inf, bias)
        lanes = self.lanes[0] if self.visible == "lanes" else ()
        visible = None if self.visible == "no" else torch.from_numpy(rng.random((*lanes, self.n, self.m)) < 0.5)
        masks = {"causal": self.causal, "window": self.window, "visible": visible, "skip_self": self.skip_self}
        return q, k, v, bias, {"mode": self.mode, **masks}


LANES = (
    ((), (), (), ()),
    ((3,), (3,), (3,), (3,)),
    ((2, 3), (2, 3), (2, 1), (2, 1)),  # heads share values and masses
    ((2, 3), (3,), (), ()),
    ((), (4,), (), (4,)),
    ((), (), (3,), ()),
)


def questions(
    sizes: st.SearchStrategy[int], dims: st.SearchStrategy[int], scores: list[float]
) -> st.SearchStrategy[Question]:
    return st.builds(
        Question,
        mode=st.sampled_from(MODES),
        n=sizes,
        m=sizes,
        d=dims,
        c=st.integers(1, 5),
        lanes=st.sampled_from(LANES),
        size=st.sampled_from(scores),
        causal=st.booleans(),
        window=st.none() | st.integers(1, 9),
        visible=st.sampled_from(("no", "shared", "lanes")),
        bias=st.sampled_from(("no", "finite", "holes")),
        skip_self=st.booleans(),
        dtype=st.sampled_from((torch.float64, torch.float32)),
        seed=st.integers(0, 2**20),
    ).filter(lambda question: not (question.mode == "linear" and question.bias == "holes"))


def small_blocks(patch: pytest.MonkeyPatch, rows: int, pairs: int) -> None:
    patch.setattr(blockwise, "QUERIES", rows)
    patch.setattr(blockwise, "PAIRS", pairs)


def tolerance(question: Question) -> float:
    """A score of size s is known to s times the rounding unit, and so is the logarithm of a weight."""
    return 64 * torch.finfo(question.dtype).eps * (4 + question.size) * question.d**0.5


@given(question=questions(st.integers(1, 9), st.integers(1, 5), [1e-3, 1.0, 20.0]))
@example(Question(n=4, m=4, bias="holes", causal=True, seed=1))
@example(Question(n=3, m=5, visible="shared", mode="sigmoid", seed=2))
def test_engines_compute_the_sums_of_the_contract(question: Question) -> None:
    q, k, v, bias, options = question.arguments()
    i, j = np.arange(question.n)[:, None], np.arange(question.m)
    seen = (j <= i if question.causal else np.ones((question.n, question.m), bool)) & (
        abs(i - j) < (question.window or 10**9)
    )
    visible = torch.from_numpy(seen) if options["visible"] is None else torch.from_numpy(seen) & options["visible"]
    bias_or_zero = torch.zeros(question.m, dtype=q.dtype) if bias is None else bias
    batch = torch.broadcast_shapes(
        q.shape[:-2], k.shape[:-2], v.shape[:-2], bias_or_zero.shape[:-1], visible.shape[:-2]
    )
    parts = [part.expand(*batch, *part.shape[-2:]).reshape(-1, *part.shape[-2:]).double().numpy() for part in (q, k, v)]
    biases = bias_or_zero.expand(*batch, question.m).reshape(-1, question.m).double().numpy()
    masks = visible.expand(*batch, *visible.shape[-2:]).reshape(-1, *visible.shape[-2:]).numpy()
    for name in ("reference", "blockwise"):
        with pytest.MonkeyPatch.context() as patch:
            small_blocks(patch, 2, 3 * max(1, batch.numel()))
            output, logsumexp = attend(q, k, v, bias, engine=name, **options)
        assert output is not None
        assert output.shape == (*batch, question.n, question.c)
        for lane in range(batch.numel()):
            wanted, wanted_log = oracles.attend(
                parts[0][lane],
                parts[1][lane],
                parts[2][lane],
                biases[lane],
                question.mode,
                masks[lane],
                question.skip_self,
            )
            got = output.reshape(-1, question.n, question.c)[lane].double().numpy()
            # the sum of |weight| bounds what rounding can add where terms cancel
            size, _ = oracles.attend(
                *(parts[0][lane], parts[1][lane], np.ones_like(parts[2][lane]), biases[lane]),
                question.mode,
                masks[lane],
            )
            bound = 4 * tolerance(question) * max(1.0, np.abs(size).max())
            np.testing.assert_allclose(got, wanted, rtol=tolerance(question), atol=bound)
            if question.mode in ("softmax", "exponential"):
                assert logsumexp is not None
                assert logsumexp.shape == (*batch, question.n)
                logs = logsumexp.reshape(-1, question.n)[lane].double().numpy()
                np.testing.assert_allclose(logs, wanted_log, rtol=tolerance(question), atol=tolerance(question))
            else:
                assert logsumexp is None


def both(
    question: Question, rows: int, pairs: int
) -> tuple[list[tuple[Tensor | None, Tensor | None]], list[list[Tensor]]]:
    """Results and gradients of the two engines for the same question."""
    results, gradients = [], []
    for name in ("reference", "blockwise"):
        q, k, v, bias, options = question.arguments()
        leaves = [part.requires_grad_() for part in (q, k, v, bias) if part is not None]
        with pytest.MonkeyPatch.context() as patch:
            small_blocks(patch, rows, pairs)
            output, logsumexp = attend(q, k, v, bias, engine=name, **options)
        assert output is not None
        generator = torch.Generator().manual_seed(question.seed)
        loss = (output * torch.randn(output.shape, generator=generator, dtype=output.dtype)).sum()
        if logsumexp is not None:
            direction = torch.randn(logsumexp.shape, generator=generator, dtype=output.dtype)
            loss = loss + (torch.where(logsumexp == -torch.inf, 0.0, logsumexp) * direction).sum()
        gradients.append(list(torch.autograd.grad(loss, leaves)))
        results.append((output.detach(), None if logsumexp is None else logsumexp.detach()))
    return results, gradients


def agree(question: Question, rows: int, pairs: int) -> None:
    (expected, got), (expected_gradients, got_gradients) = both(question, rows, pairs)
    names = ("output", "logsumexp", *(f"gradient {index}" for index in range(len(got_gradients))))
    for name, one, other in zip(names, (*expected, *expected_gradients), (*got, *got_gradients), strict=True):
        assert (one is None) == (other is None), name
        if one is None or other is None:
            continue
        assert not bool(torch.isnan(other).any()), name
        bound = tolerance(question) * float(torch.where(torch.isfinite(one), one, 0.0).abs().max())
        torch.testing.assert_close(
            other, one, rtol=tolerance(question), atol=bound + 1e-300, msg=lambda text, n=name: f"{n}: {text}"
        )


@given(
    question=questions(st.integers(1, 60), st.sampled_from((1, 2, 7, 64, 128)), [1e-4, 1.0, 30.0]),
    rows=st.integers(1, 17),
    pairs=st.integers(1, 400),
)
def test_blocks_change_nothing(question: Question, rows: int, pairs: int) -> None:
    """Blockwise equals the reference, forward and backward, whatever the blocks."""
    agree(question, rows, pairs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 700), (257, 255), (700, 1), (513, 700)])
def test_awkward_sizes(mode: str, n: int, m: int) -> None:
    for masks in ({}, {"causal": True}, {"window": 40, "skip_self": True}):
        agree(Question(mode=mode, n=n, m=m, d=16, bias="finite", seed=n + m, **masks), 256, 100_000)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [-1e4, 1e4])
def test_enormous_scores(engine: str, size: float, dtype: torch.dtype) -> None:
    """Scores of +-1e4 lose no row: weights sum to one and the logsumexp stays at the peak."""
    rng = np.random.default_rng(0)
    k = torch.from_numpy(rng.standard_normal((90, 1))).to(dtype)
    q = torch.full((50, 1), size, dtype=dtype)
    output, logsumexp = attend(q, k, torch.ones(90, 1, dtype=dtype), engine=engine)
    assert output is not None
    assert logsumexp is not None
    torch.testing.assert_close(output, torch.ones_like(output), rtol=1e-6, atol=0)
    peak = (k * size).max()
    assert bool(((logsumexp >= peak) & (logsumexp <= peak + 5)).all())
    both_engines = Question(size=1e4, n=33, m=61, d=5, bias="finite", causal=True, dtype=dtype)
    agree(both_engines, 8, 64)


def test_rows_that_see_nothing_are_zero(engine: str) -> None:
    """A hidden row gives output 0, logsumexp -inf and gradient 0, never NaN."""
    rng = np.random.default_rng(1)
    visible = torch.ones(5, 6, dtype=torch.bool)
    visible[2] = False
    for mode in MODES:
        q, k, v = (torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in ((5, 3), (6, 3), (6, 2)))
        with pytest.MonkeyPatch.context() as patch:
            small_blocks(patch, 2, 4)
            output, logsumexp = attend(q, k, v, None, mode, visible=visible, engine=engine)  # type: ignore[arg-type]
        assert output is not None
        assert output[2].tolist() == [0.0, 0.0]
        assert bool(torch.isfinite(output).all())
        total = output.sum()
        if logsumexp is not None:
            assert float(logsumexp[2].detach()) == -torch.inf
            total = total + logsumexp[torch.arange(5) != 2].sum()
        for gradient in torch.autograd.grad(total, (q, k, v), allow_unused=True):
            assert gradient is not None
            assert bool(torch.isfinite(gradient).all())
            assert mode == "sigmoid" or gradient.shape != q.shape or gradient[2].tolist() == [0.0] * 3


def test_all_keys_of_mass_zero(engine: str) -> None:
    bias = torch.full((4,), -torch.inf, dtype=torch.float64)
    x = torch.ones(4, 2, dtype=torch.float64)
    output, logsumexp = attend(x, x, x, bias, engine=engine)
    assert output is not None
    assert logsumexp is not None
    assert output.abs().max() == 0
    assert bool((logsumexp == -torch.inf).all())


@pytest.mark.parametrize("mode", MODES)
def test_without_values_only_the_logsumexp(engine: str, mode: str) -> None:
    q, k, v, bias, options = Question(mode=mode, n=30, m=41, bias="finite", causal=True, lanes=LANES[2]).arguments()
    output, logsumexp = attend(q, k, None, bias, engine=engine, **options)
    _, expected = attend(q, k, v, bias, engine="reference", **options)
    assert output is None
    if expected is None:
        assert logsumexp is None
    else:
        torch.testing.assert_close(logsumexp, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("mode", ["softmax", "exponential"])
def test_skip_self_keeps_the_normaliser(engine: str, mode: str) -> None:
    """Leaving key i out of output i subtracts w_ii v_i and nothing else."""
    q, k, v, bias, options = Question(mode=mode, n=20, m=20, bias="finite").arguments()
    del options["skip_self"]
    whole, logsumexp = attend(q, k, v, bias, engine=engine, **options)
    rest, same = attend(q, k, v, bias, engine=engine, skip_self=True, **options)
    assert whole is not None
    assert rest is not None
    assert bias is not None
    assert logsumexp is not None
    own = (q * k).sum(-1) + bias
    share = (own - logsumexp if mode == "softmax" else own).exp().unsqueeze(-1)
    torch.testing.assert_close(rest, whole - share * v, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(same, logsumexp, rtol=0, atol=0)


def test_skip_self_saves_small_rates(engine: str) -> None:
    """Beside a self weight of nearly one, the weight e^-200 of a far token survives."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    output, _ = attend(
        100 * x, x, torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64), engine=engine, skip_self=True
    )
    assert output is not None
    assert float(output[0, 1]) == pytest.approx(np.exp(-200.0), rel=1e-13)


def test_skip_self_leaves_out_a_term_that_overflows(engine: str) -> None:
    """e^800 is not a number of float64, but it need not be one when it is left out."""
    q = torch.tensor([[800.0], [0.0]], dtype=torch.float64)
    k = torch.tensor([[1.0], [1e-2]], dtype=torch.float64)
    output, logsumexp = attend(
        q, k, torch.ones(2, 1, dtype=torch.float64), None, "exponential", engine=engine, skip_self=True
    )
    assert output is not None
    assert logsumexp is not None
    np.testing.assert_allclose(output[:, 0].numpy(), [np.exp(8.0), 1.0], rtol=1e-14)
    np.testing.assert_allclose(logsumexp.numpy(), [800.0, np.log(2.0)], rtol=1e-14)


X = torch.ones(4, 3, dtype=torch.float64)
REFUSED: dict[str, tuple[tuple[Tensor | None, ...], dict[str, Any], str]] = {
    "whole numbers": ((X.long(), X.long(), X.long()), {}, "must be of one floating-point type, got int64"),
    "complex numbers": ((X + 0j, X + 0j, X + 0j), {}, "must be of one floating-point type, got complex128"),
    "two types": ((X, X.float(), X), {}, "must be of one floating-point type, got float32, float64"),
    "one axis": ((X[0], X, X), {}, r"queries must have shape \(..., rows, columns\), got \(3,\)"),
    "batches": ((X.expand(2, 4, 3), X.expand(3, 4, 3), X), {}, "leading axes of these shapes do not fit together"),
    "half a token": ((X, X, X), {"window": 2.5}, "a window is a whole number of tokens, got 2.5"),
    "no token": ((X, X, X), {"window": 0}, "a window must hold at least the token itself, got 0"),
    "a mask of numbers": ((X, X, X), {"visible": torch.ones(4, 4)}, "visible says True or False"),
    "a tolerance": ((X, X, X), {"tolerance": 2.0}, "tolerance must be between 0 and 1, got 2"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("asked", [None, "fused", "reference"])
def test_what_cannot_be_asked_is_one_sentence(name: str, asked: str | None) -> None:
    operands, options, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        attend(*operands, engine=asked, **options)  # type: ignore[arg-type]


def test_a_window_may_be_any_whole_number(engine: str) -> None:
    output, _ = attend(X, X, X, window=np.int64(2), engine=engine)  # type: ignore[arg-type]
    torch.testing.assert_close(output, attend(X, X, X, window=2, engine=engine)[0])
