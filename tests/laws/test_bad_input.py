"""Every refusal is one clear sentence of one family: what was given, what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attractor.errors import AttractorError, InputError, MissingExtraError, StoreError, UnsupportedError, missing
from attractor.laws import Absolute, Attention, Causal, Rotary, Sigmoid, Visible, Window
from attractor.states import Tokens

EYE = np.eye(4)


def attention(**options: Any) -> Attention:
    return Attention(**{"query": EYE, "key": EYE, "value": EYE, **options})


PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"query": np.full((4, 4), np.nan)}, r"the query holds NaN at index \(0, 0\); every entry must be finite"),
    ({"value": np.diag([1.0, np.inf, 1.0, 1.0])}, r"the value holds an infinite value at index \(1, 1\)"),
    ({"key": "three"}, r"the key must be numbers in a rectangular array, got str"),
    ({"key": [[1.0, 2.0], [3.0]]}, r"the key must be numbers in a rectangular array, got list"),
    ({"query": EYE + 1j}, r"the query must be real, got dtype"),
    ({"query": np.ones(4)}, r"query and key must both be \(k, d\) or \(h, k, d\), got \(4,\) and \(4, 4\)"),
    ({"key": np.ones((2, 4))}, r"query and key must both be .*got \(4, 4\) and \(2, 4\)"),
    ({"value": np.ones((2, 4, 4))}, r"value must be \(4, 4\) to go with a query of shape \(4, 4\), got \(2, 4, 4\)"),
    ({"value": np.ones((3, 4))}, r"value must be \(4, 4\)"),
    (
        {"value": np.ones((2, 4)), "output": np.ones((2, 4))},
        r"factored value is \(h, r, d\) with output \(h, d, r\), got",
    ),
    ({"query_bias": np.ones(3)}, r"query_bias must be \(4,\), got \(3,\)"),
    ({"value_bias": np.ones((2, 4))}, r"value_bias must be \(4,\), got \(2, 4\)"),
    ({"output_bias": np.ones(5)}, r"output_bias must be \(4,\), got \(5,\)"),
    ({"scale": float("nan")}, r"scale must be a finite number, got nan"),
    ({"scale": "big"}, r"scale must be a finite number, got 'big'"),
    (
        {"kernel": "gaussian"},
        r"kernel 'gaussian' is not known; the kernels are capped, exponential, .*softmax",
    ),
    ({"kernel": 3}, r"kernel 3 is not known"),
    ({"mask": "diagonal"}, r"mask 'diagonal' is not known; give None, 'causal', 'window:64', a boolean"),
    ({"mask": "window:many"}, r"mask 'window:many' is not known"),
    ({"mask": "window:0"}, r"a window needs a whole width of at least 1, got 0"),
    ({"mask": np.ones((3, 3))}, r"boolean and square, \(n, n\), got torch.float64 of shape \(3, 3\)"),
    ({"mask": np.ones((3, 2), dtype=bool)}, r"boolean and square, \(n, n\), got torch.bool of shape \(3, 2\)"),
    (
        {"mask": np.array([[1, 0], [0, 0]], dtype=bool)},
        r"row 1 of the mask sees no key; every token must see at least one",
    ),
    ({"mask": object()}, r"mask .* is not known"),
    (
        {"positions": "rotary"},
        r"positions must be None, Absolute\(...\), Rotary\(...\), Alibi\(...\) or Relative\(...\), or a list of these, got 'rotary'",
    ),
    (
        {"query": np.ones((3, 4)), "key": np.ones((3, 4)), "positions": Rotary()},
        r"turn pairs of coordinates: the head dimension must be even, got 3",
    ),
    ({"positions": Rotary(dim=6)}, r"rotary positions turn 6 coordinates but the head has 4"),
    ({"positions": Absolute(np.ones((9, 3)))}, r"the position table has dimension 3, the law has 4"),
]


@pytest.mark.parametrize(("options", "message"), PARAMETERS, ids=[message[:40] for _, message in PARAMETERS])
def test_attention_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        attention(**options)
    assert "\n" not in str(refused.value)


def test_parts_refuse() -> None:
    with pytest.raises(InputError, match="dim must be even and at least 2, got 3"):
        Rotary(dim=3)
    with pytest.raises(InputError, match="rotary positions need theta > 0, got -1"):
        Rotary(theta=-1.0)
    with pytest.raises(InputError, match=r"a window needs a whole width of at least 1, got 2.5"):
        Window(2.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"position table must have shape \(places, d\), got \(3,\)"):
        Absolute(np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="when='every' or when='input', not 'never'"):
        Absolute(EYE, when="never")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="on='qkv' or on='qk', not 'v'"):
        Absolute(EYE, on="v")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="sigmoid needs a finite bias, got nan"):
        Sigmoid(float("nan"))


def test_singular_values_have_no_metric() -> None:
    with pytest.raises(InputError, match=r"the value is singular, so the metric .* does not exist"):
        _ = attention(value=np.diag([1.0, 1.0, 0.0, 1.0])).metric
    with pytest.raises(InputError, match="the value is singular"):
        _ = attention(value=np.ones((2, 4)), output=np.ones((4, 2))).metric


def test_tokens_that_do_not_fit_the_law() -> None:
    law = attention()
    law.check(Tokens(np.ones((3, 4))))
    with pytest.raises(InputError, match="the law moves tokens of dimension 4, the state has dimension 2"):
        law.check(Tokens(np.ones((3, 2))))
    members = Attention(*(np.ones((5, 1, 4, 4)) for _ in range(3)))
    members.check(Tokens(np.ones((5, 3, 4))))
    with pytest.raises(InputError, match="parameters for 5 ensemble members, the state has 2"):
        members.check(Tokens(np.ones((2, 3, 4))))
    with pytest.raises(InputError, match="the mask is for 3 tokens, the state has 5"):
        attention(mask=np.tri(3, dtype=bool)).check(Tokens(np.ones((5, 4))))
    with pytest.raises(InputError, match="the mask is for 3 tokens, the state has 5"):
        attention(mask=np.tri(3, dtype=bool)).velocity(Tokens(np.ones((5, 4))))
    for positions in ([0.0, 5.0], [0.0, -1.0], [0.0, 0.5]):
        with pytest.raises(InputError, match="the position table has places 0 to 3; the tokens stand at"):
            attention(positions=Absolute(EYE)).velocity(Tokens(np.ones((2, 4)), positions=positions))
    with pytest.raises(InputError, match="places 0 to 3; the tokens stand at 0 to 6"):
        attention(positions=Absolute(EYE)).check(Tokens(np.ones((7, 4))))


@pytest.mark.parametrize("error", [InputError, UnsupportedError, StoreError, MissingExtraError])
def test_one_family(error: type[Exception]) -> None:
    assert issubclass(error, AttractorError)
    relatives = {InputError: ValueError, StoreError: OSError, MissingExtraError: ImportError}
    assert issubclass(error, relatives.get(error, Exception))


def test_a_missing_extra_says_what_to_install() -> None:
    error = missing("zarr", extra="store")
    assert isinstance(error, MissingExtraError)
    assert str(error) == "this needs zarr, which is not installed: pip install 'attractor[store]'"


def test_masks_are_values() -> None:
    assert Causal() == Causal()
    assert Window(3) != Window(3, causal=False)
    assert isinstance(attention(mask=Visible(torch.eye(2, dtype=torch.bool))).mask, Visible)
