"""Penalties towards a regime and groups of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attractor as at
from attractor.errors import InputError, UnsupportedError


def stack(refinement: Any = None, layers: int = 2) -> torch.nn.Sequential:
    torch.manual_seed(0)
    kept = [at.nn.PlainAttention(12, 2, refinement=refinement, head_dim=12) for _ in range(layers)]
    return torch.nn.Sequential(*(at.nn.TransformerBlock(layer, 12) for layer in kept))


@pytest.mark.parametrize("regime", ["convergent", "divergent"])
def test_the_penalty_reaches_the_regime(regime: str) -> None:
    """Minimised alone it makes sym(V'W) definite, with gradients against finite differences."""
    model = stack()
    penalty = at.nn.regime_loss(model, regime, form=1.0, margin=0.02)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-2)
    assert float(penalty().detach()) > 0.1
    for _ in range(300):
        optimiser.zero_grad()
        loss = penalty()
        loss.backward()
        optimiser.step()
    assert float(penalty().detach()) < 0.02
    for block in model:
        weights = block.attention.weights(torch.float64)
        form = (weights.value_map().mT @ weights.interaction()).mean(0).detach()
        eigenvalues = torch.linalg.eigvalsh(form + form.mT)
        assert bool((eigenvalues > 0).all() if regime == "divergent" else (eigenvalues < 0).all())


def test_gradients_are_those_of_the_formula() -> None:
    model = stack(layers=1).double()
    penalty = at.nn.regime_loss(model, "divergent", form=0.7, growth=0.3, margin=0.1, growth_target=5.0)
    weight = model[0].attention.value.weight
    penalty().backward()
    along = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step, values = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * step * along
            values.append(float(penalty().detach()))
            weight -= sign * step * along
    assert weight.grad is not None
    assert float((weight.grad * along).sum()) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


def test_value_spectra_and_cosines() -> None:
    model = stack()
    growth = at.nn.regime_loss(model, growth=[0.0, 2.0], growth_target=-0.5)
    total = model[1].attention.weights().detach().value_map().sum(0)
    expected = 2.0 * (float(torch.linalg.eigvals(total).real.max()) + 0.5)
    assert float(growth().detach()) == pytest.approx(expected, rel=1e-5)
    assert float(growth.measure().growth[1]) == pytest.approx(expected / 2 - 0.5, rel=1e-5)
    cosine = at.nn.regime_loss(model, cosine=1.0, cosine_target=-1.0)
    with pytest.raises(InputError, match="call the model before the penalty"):
        cosine()
    x = torch.randn(3, 7, 12)
    first = model[0](x)
    out = model(x)
    means = [float(at.nn.penalties.mean_cosine(state).detach()) for state in (first, out)]
    unit = out / out.norm(dim=-1, keepdim=True)
    pairs = (unit @ unit.mT)[:, ~torch.eye(7, dtype=torch.bool)]
    assert means[1] == pytest.approx(float(pairs.mean().detach()), rel=1e-5)
    loss = cosine()
    assert float(loss.detach()) == pytest.approx(sum(means) + 2, rel=1e-5)
    loss.backward()
    assert model[0].attention.query.weight.grad is not None
    cosine.remove()


def test_schedules() -> None:
    model = stack()
    fixed = at.nn.regime_loss(model, growth=[1.0, 0.0], growth_target=-3.0)
    moving = at.nn.regime_loss(
        model, growth=lambda step, layer: step / 10 if layer == 0 else 0.0, growth_target=[-3.0, 0.0]
    )
    assert float(moving(0).detach()) == 0.0
    assert float(moving(5).detach()) == pytest.approx(0.5 * float(fixed().detach()))


def test_a_refinement_is_part_of_the_form() -> None:
    """A large positive shift makes sym(V'W) positive where the values have full rank."""
    torch.manual_seed(0)
    layers = [at.nn.PlainAttention(8, 1, refinement=at.nn.Shift(8, 1, "+", value)) for value in (1e-6, 1e3)]
    found = at.nn.regime_loss(torch.nn.ModuleList(layers)).measure().form
    assert float(found[0]) < 0 < float(found[1])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
def test_models_of_transformers(kind: str) -> None:
    """Against the laws of the model: the form and the spectrum of every layer, with a refinement and shared keys."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)),
        "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes)),
    }[kind]()
    at.nn.refine(model, "shift", value=0.3, sign="+")
    found = at.nn.regime_loss(model).measure()
    for index, layer in enumerate(at.models.checkpoint(model).layers):
        law: Any = layer.attention
        values = law.output @ law.value
        interactions = law.query.mT @ law.key
        form = (values.mT @ interactions).mean(0)
        form = form + form.mT
        assert float(found.form[index]) == pytest.approx(float(torch.linalg.eigvalsh(form)[0] / form.norm()), rel=1e-3)
        assert float(found.growth[index]) == pytest.approx(
            float(torch.linalg.eigvals(values.sum(0)).real.max()), rel=1e-3
        )
    penalty = at.nn.regime_loss(model, "divergent", form=1.0, cosine=0.1, margin=0.5)
    out = model(torch.arange(9)[None], labels=torch.arange(9)[None])
    (out.loss + penalty(0)).backward()
    assert all(part.grad is not None for name, part in model.named_parameters() if "theta" in name)


def test_bad_input() -> None:
    model = stack()
    for options, message in (
        ({"growth": -1.0}, "the weight growth of a penalty must be at least 0, got -1.0"),
        ({"cosine": "much"}, "cosine of a penalty must be a finite number"),
        ({"form": 1.0}, "give regime='convergent' or 'divergent'"),
        ({"regime": "divergnt", "form": 1.0}, "did you mean 'divergent'"),
        ({"growth": [1.0, 2.0, 3.0]}, "one for each of 2 layers, got 3"),
        ({"growth": 1.0, "growth_target": float("nan")}, "growth_target of a penalty must be a finite number"),
    ):
        with pytest.raises(InputError, match=message):
            at.nn.regime_loss(model, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be at least 0, got -1"):
        at.nn.regime_loss(model, growth=lambda step, layer: -1)()
    with pytest.raises(UnsupportedError, match="has no attention layer"):
        at.nn.regime_loss(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="decay must be a finite number of at least 0"):
        at.nn.param_groups(model, -1)


def test_parameter_groups() -> None:
    layers = [at.nn.DefiniteAttention(8, 2, refinement="shift"), at.nn.PlainAttention(8, 2, temperature="learned")]
    model = torch.nn.Sequential(*(at.nn.TransformerBlock(layer, 8) for layer in layers))
    model[1].widen.weight.requires_grad_(False)  # type: ignore[union-attr]
    decayed, free = at.nn.param_groups(model, 0.1)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    names = {id(part): name for name, part in model.named_parameters()}
    kept = [{names[id(part)].rpartition(".")[2] for part in group["params"]} for group in (decayed, free)]
    assert kept[0] == {"projection", "weight"}
    assert {"pivots", "lower", "skew", "theta", "log_temperature", "bias"} <= kept[1]
    ids = [id(part) for group in (decayed, free) for part in group["params"]]
    assert len(set(ids)) == len(ids) == len(names) - 1


def test_decay_of_theta_raises_the_strength() -> None:
    """Why it is exempt: with decay alone, a strength of sign "+" grows towards softplus(0) = log 2."""
    for grouped in (False, True):
        layer = at.nn.PlainAttention(8, 2, refinement=at.nn.Shift(8, 2, "+", 0.05))
        parameters: Any = at.nn.param_groups(layer, 0.5) if grouped else layer.parameters()
        optimiser = torch.optim.AdamW(parameters, lr=0.1, **({} if grouped else {"weight_decay": 0.5}))
        for _ in range(20):
            for part in layer.parameters():
                part.grad = torch.zeros_like(part)
            optimiser.step()
        assert layer.refinement is not None
        strength = float(layer.refinement.strength[0].detach())
        assert strength == pytest.approx(0.05, rel=1e-5) if grouped else strength > 0.2
