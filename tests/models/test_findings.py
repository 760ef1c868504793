"""Findings of traces: planted pathologies are found with their place, and healthy models have none of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.errors import InputError
from attractor.models import Condition, Finding, initialize, list_kinds
from attractor.models.measurements import MASSIVE, measure_shape, measure_weights

TOKENS = 24
LARGER = {"n_embd": 64, "n_layer": 4, "n_head": 4}
PLANTED = {"massive_activation", "attention_sink", "over_smoothing", "entropy_collapse", "dead_head"}


def healthy(seed: int) -> Any:
    """A GPT-2 with 4 layers of 4 heads whose weights are larger than at initialisation, so that heads select tokens."""
    model: Any = random_model("GPT-2", seed, **LARGER)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.15 * torch.randn(parameter.shape, generator=draw))
            else:
                parameter.fill_(1.0 if "ln" in name and name.endswith("weight") else 0.0)
        model.wte.weight.copy_(torch.randn(model.wte.weight.shape, generator=draw))
        model.wpe.weight.copy_(0.1 * torch.randn(model.wpe.weight.shape, generator=draw))
    return model


def read(model: Any, seed: int) -> dict[str, Finding]:
    ids = torch.randperm(60, generator=torch.Generator().manual_seed(seed))[:TOKENS]
    return {one.kind: one for one in at.trace(model, ids).findings}


def head_columns(model: Any, layer: int, head: int, part: int) -> tuple[Any, slice]:
    """The fused weight (d, 3 d) of queries, keys and values of a layer, and the columns of one head's part."""
    width, d = 16, 64
    begin = part * d + head * width
    return model.h[layer].attn.c_attn.weight, slice(begin, begin + width)


def plant_massive_token(model: Any) -> None:
    """The position embedding of token 9 is large in one coordinate."""
    model.wpe.weight.data[9, 5] = 2000.0


def plant_collapse(model: Any) -> None:
    """The feed-forward of block 2 adds one large constant to all tokens."""
    model.h[2].mlp.c_proj.bias.data[:] = 60.0 * torch.sign(torch.randn(64, generator=torch.Generator().manual_seed(1)))


def plant_sink(model: Any) -> None:
    """All queries of head 3 in layer 1 score the direction that only token 6 has."""
    direction = 40.0 * torch.nn.functional.normalize(torch.randn(64, generator=torch.Generator().manual_seed(2)), dim=0)
    model.wpe.weight.data[6] += direction
    weight, queries = head_columns(model, 1, 3, 0)
    weight.data[:, queries] = 0.0
    model.h[1].attn.c_attn.bias.data[queries] = 6.0
    weight, keys = head_columns(model, 1, 3, 1)
    weight.data[:, keys] = (direction / direction.norm() * 0.6).unsqueeze(1)


def plant_entropy_collapse(model: Any) -> None:
    """Queries and keys of head 0 in layer 2 are scaled until every token attends to a single key."""
    for part in (0, 1):
        weight, columns = head_columns(model, 2, 0, part)
        weight.data[:, columns] *= 12.0


def plant_dead_head(model: Any) -> None:
    """The values of head 1 in layer 3 vanish."""
    weight, columns = head_columns(model, 3, 1, 2)
    weight.data[:, columns] *= 1e-4


@pytest.mark.parametrize("seed", range(20))
def test_planted_pathologies_are_found_in_their_place(seed: int) -> None:
    assert not PLANTED & read(healthy(seed), seed).keys()
    cases: list[tuple[Any, str, tuple[int | None, int | None, int | None]]] = [
        (plant_massive_token, "massive_activation", (None, None, 9)),
        (plant_collapse, "over_smoothing", (2, None, None)),
        (plant_sink, "attention_sink", (1, 3, 6)),
        (plant_entropy_collapse, "entropy_collapse", (2, 0, None)),
        (plant_dead_head, "dead_head", (3, 1, None)),
    ]
    for plant, kind, (layer, head, token) in cases:
        model = healthy(seed)
        plant(model)
        found = read(model, seed).get(kind)
        assert found is not None, kind
        if layer is not None:
            assert found.layer == layer or (
                kind == "over_smoothing" and found.layer is not None and found.layer >= layer
            ), found
        assert (head, token) == (
            found.head if head is not None else None,
            found.token if token is not None else None,
        ), found


@pytest.mark.model
def test_planted_pathologies_in_a_real_model() -> None:
    """MiniLM with a planted dead head and a planted massive token; neither is found before."""
    from attractor.models import load_model, tokenize

    opened = at.checkpoint("minilm")
    text = "The particles that interact through attention form clusters, and the clusters merge after a long time."
    ids, _ = tokenize(opened, text)
    model = load_model(opened)
    before = {one.kind for one in at.trace(model, ids).findings}
    assert not {"dead_head", "massive_activation", "over_smoothing"} & before
    value = model.encoder.layer[4].attention.self.value
    with torch.no_grad():
        value.weight[64:96] *= 1e-4
        value.bias[64:96] = 0.0
        model.encoder.layer[5].output.LayerNorm.weight[7] = 1.0
    found = {one.kind: one for one in at.trace(model, ids).findings}
    assert (found["dead_head"].layer, found["dead_head"].head) == (4, 2)


def test_findings_carry_the_rate_of_random_weights() -> None:
    """The attention of GPT-2 is uniform at initialisation, so that uniform attention says nothing about training."""
    model = initialize(random_model("GPT-2", **LARGER).config, 7, dtype=torch.float32)
    run = at.trace(model, list(range(TOKENS)), nulls=2)
    found = {one.kind: one for one in run.findings}
    assert found["uniform_attention"].random_rate == 1.0
    assert found["uniform_attention"].common
    assert len(run.random) == 2
    unknown = at.trace(model, list(range(TOKENS))).findings[0]
    assert unknown.random_rate is None
    assert not unknown.common
    assert "unknown" in unknown.sentence()


def test_random_weights_leave_the_global_generator_alone() -> None:
    model = random_model("GPT-2")
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    at.trace(model, [1, 2, 3, 4], nulls=1)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_measures_of_shape() -> None:
    """Against direct formulas; a token far longer than the others does not enter the centred measures."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(12, 5, generator=draw, dtype=torch.float64) + 1.0
    found, longest = measure_shape(points)
    centred = points - points.mean(0)
    values = torch.linalg.svdvals(centred).square()
    torch.testing.assert_close(found["centred_rank"], values.sum().square() / values.square().sum())
    cosines = torch.corrcoef(torch.cat((centred, -centred), dim=1))  # rows of mean zero: correlations are cosines
    torch.testing.assert_close(found["centred_cosine"], (cosines.sum() - 12) / (12 * 11))
    units = points / points.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(found["anisotropy"], units.mean(0).square().sum())
    assert longest == int(points.norm(dim=-1).argmax())
    massive = torch.cat((points, 3 * MASSIVE * points[:1]))
    again, place = measure_shape(massive)
    torch.testing.assert_close(again["centred_rank"], found["centred_rank"])
    assert place == 12
    assert float(again["largest_norm"]) >= MASSIVE
    equal, _ = measure_shape(torch.ones(4, 3, dtype=torch.float64))
    assert bool(equal["centred_rank"].isnan())


def test_measures_of_weights() -> None:
    n = 8
    uniform = torch.ones(1, n, n, dtype=torch.float64).tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    found = measure_weights(uniform)
    torch.testing.assert_close(found["relative_entropy"], torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(found["sink_weight"], uniform[:, 1:, 0].mean(-1))
    full = torch.full((1, n, n), 1.0 / n, dtype=torch.float64)
    torch.testing.assert_close(measure_weights(full)["relative_entropy"], torch.ones(1, dtype=torch.float64))
    sink = torch.zeros(1, n, n, dtype=torch.float64)
    sink[0, :, 3] = 1.0
    assert (float(measure_weights(sink)["sink_weight"]), int(measure_weights(sink)["sink_token"])) == (1.0, 3)


def test_conditions() -> None:
    run = at.trace(random_model("GPT-2", **LARGER), list(range(TOKENS)))
    assert run.measurements is not None
    ranks = run.measurements.curves["effective_rank"].tolist()
    bound = sorted(ranks)[2] * (1 + 1e-9)
    violated = Condition.parse(f"effective_rank <= {bound}").violations([run.measurements], run.findings)
    assert len(violated) == 3
    late = Condition.parse(f"effective_rank <= {max(ranks)} at layers > 1").violations([run.measurements], run.findings)
    assert len(late) == 2
    only = Condition.parse("relative_entropy >= 0 at layer 2").violations([run.measurements], run.findings)
    assert [text.split(" at ")[1] for text in only] == [f"layer 2, head {head}" for head in range(4)]
    assert Condition.parse("token_norm < 0").violations([run.measurements], run.findings) == []
    for kind in list_kinds():
        holds = any(one.kind == kind.name for one in run.findings)
        assert bool(Condition.parse(kind.name.replace("_", " ")).violations([run.measurements], run.findings)) == holds


@pytest.mark.parametrize(
    "text", ["rank", "rank < ", "rank < x", "rank ~ 3", "rank < 3 at tokens > 2", "", "rank < 1 at layers > x"]
)
def test_bad_conditions_are_rejected(text: str) -> None:
    with pytest.raises(InputError, match="condition"):
        Condition.parse(text)


def test_an_unknown_measurement_is_rejected() -> None:
    run = at.trace(random_model("GPT-2"), [1, 2, 3, 4])
    assert run.measurements is not None
    with pytest.raises(InputError, match="did you mean 'effective_rank'"):
        Condition.parse("efective_rank < 3").violations([run.measurements], run.findings)


@pytest.mark.parametrize("text", ["effective_rank < 50 at layers > 30", "token_norm < 0 at layer 30"])
def test_a_condition_on_layers_that_do_not_exist_is_rejected(text: str) -> None:
    run = at.trace(random_model("GPT-2"), [1, 2, 3, 4])
    assert run.measurements is not None
    with pytest.raises(InputError, match="no value to test: the layers of this run are 0 to "):
        Condition.parse(text).violations([run.measurements], run.findings)


@pytest.mark.parametrize("text", [["some words", "other words"], [0.3, 1.7, 2.2], [True, False]])
def test_what_is_no_text_is_rejected(text: list) -> None:
    with pytest.raises(InputError, match="one string or one row of whole numbers"):
        at.trace(random_model("GPT-2"), text)


def test_weights_given_as_the_switch_are_rejected() -> None:
    with pytest.raises(InputError, match="attention weights are attentions="):
        at.trace(states=torch.randn(3, 4, 5), attention=torch.full((2, 1, 4, 4), 0.25))
