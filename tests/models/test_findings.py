"""Findings of traces: planted pathologies are found with their place, and healthy models have none of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.errors import InputError
from attractor.models import Condition, Finding, Place, initialize, list_kinds
from attractor.models.measurements import MASSIVE, measure_shape, measure_weights

TOKENS = 24
LARGER = {"n_embd": 64, "n_layer": 4, "n_head": 4}


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
        weight.data[:, columns] *= 30.0


def plant_dead_head(model: Any) -> None:
    """The values of head 1 in layer 3 vanish."""
    weight, columns = head_columns(model, 3, 1, 2)
    weight.data[:, columns] *= 1e-4


@pytest.mark.parametrize("seed", range(1000, 1020))  # seeds that were not looked at when thresholds were chosen
def test_planted_pathologies_are_found_in_their_place(seed: int) -> None:
    assert not read(healthy(seed), seed)
    cases: list[tuple[Any, str, tuple[int | None, int | None, int | None]]] = [
        (plant_massive_token, "massive_activation", (None, None, 9)),
        (plant_collapse, "over_smoothing", (2, None, None)),
        (plant_sink, "attention_sink", (1, 3, 6)),
        (plant_entropy_collapse, "entropy_collapse", (2, 0, None)),
        (plant_dead_head, "dead_head", (3, 1, None)),
    ]
    for plant, kind, place in cases:
        model = healthy(seed)
        plant(model)
        found = read(model, seed).get(kind)
        assert found is not None, kind
        assert any(matches(one, place) for one in found.where), (kind, found.where)
        assert found.places == len(found.where)
        if kind != "over_smoothing":  # the blocks after the collapsed one are smooth too
            assert matches(found.where[0], place), (kind, found.where)


def matches(place: Place, expected: tuple[int | None, int | None, int | None]) -> bool:
    """Whether a place has the layer, head and token that are given."""
    own = (place.layer, place.head, place.token)
    return all(given is None or given == found for given, found in zip(expected, own, strict=True))


@pytest.mark.model
def test_planted_pathologies_in_a_real_model() -> None:
    """MiniLM with a dead head, a collapsed head, a sink at token 6, smooth tokens and a massive token; none is there before."""
    from attractor.models import load_model, tokenize

    opened = at.checkpoint("minilm")
    text = "The particles that interact through attention form clusters, and the clusters merge after a long time."
    ids, _ = tokenize(opened, text)
    model = load_model(opened)
    clean = copy.deepcopy(model.state_dict())

    def find(plant: Callable[[], None] = lambda: None) -> dict[str, Finding]:
        model.load_state_dict(clean)
        with torch.no_grad():
            plant()
        return {one.kind: one for one in at.trace(model, ids).findings}

    def kill_head() -> None:
        value = model.encoder.layer[4].attention.self.value
        value.weight[64:96] *= 1e-4
        value.bias[64:96] = 0.0

    def sharpen_head() -> None:
        for part in (model.encoder.layer[2].attention.self.query, model.encoder.layer[2].attention.self.key):
            part.weight[160:192] *= 6.0

    def direct_head() -> None:
        """Queries of layer 0, head 3 are constant, and its keys see a direction that only position 6 has."""
        direction = torch.nn.functional.normalize(torch.randn(384, generator=torch.Generator().manual_seed(2)), dim=0)
        model.embeddings.position_embeddings.weight[6] += 4.0 * direction
        self_attention = model.encoder.layer[0].attention.self
        self_attention.query.weight[96:128] = 0.0
        self_attention.query.bias[96:128] = 4.0
        self_attention.key.weight[96:128] = direction / model.embeddings.LayerNorm.weight

    def smooth_tokens() -> None:
        model.encoder.layer[3].output.dense.bias += 200.0 * torch.randn(384, generator=torch.Generator().manual_seed(3))

    def lengthen_token() -> None:
        """Only the feed-forward of token 9 writes to one coordinate of the last block, which its norm then multiplies."""
        block, coordinate, found = model.encoder.layer[5], 7, []
        for part in (block.attention.output.LayerNorm, block.output.LayerNorm):
            part.weight[coordinate] = part.bias[coordinate] = 0.0
        handle = block.output.dense.register_forward_pre_hook(lambda _, given: found.append(given[0][0]))
        model(input_ids=ids.unsqueeze(0))
        handle.remove()
        only = torch.zeros(len(ids), 1)
        only[9] = 1000.0
        block.output.dense.weight[coordinate] = torch.linalg.lstsq(found[0], only).solution[:, 0]
        block.output.dense.bias[coordinate] = 0.0
        block.output.LayerNorm.weight[coordinate] = 30.0

    before = find()
    cases: list[tuple[Callable[[], None], str, tuple[int | None, int | None, int | None]]] = [
        (kill_head, "dead_head", (4, 2, None)),
        (sharpen_head, "entropy_collapse", (2, 5, None)),
        (direct_head, "attention_sink", (0, 3, 6)),
        (smooth_tokens, "over_smoothing", (3, None, None)),
        (lengthen_token, "massive_activation", (5, None, 9)),
    ]
    for plant, kind, place in cases:
        assert not any(matches(one, place) for one in before[kind].where) if kind in before else True, kind
        found = find(plant).get(kind)
        assert found is not None, kind
        assert any(matches(one, place) for one in found.where), (kind, found.where)


def test_findings_in_words() -> None:
    """Every place is named: heads by layer, states as ranges of layers."""
    model = healthy(0)
    for layer in (1, 3):
        weight, columns = head_columns(model, layer, 2, 2)
        weight.data[:, columns] *= 1e-4
    found = read(model, 0)["dead_head"]
    assert {(place.layer, place.head) for place in found.where} == {(1, 2), (3, 2)}
    assert found.list_places() == "layer 1 head 2; layer 3 head 2"
    assert found.extent == "2 of 16 heads"
    assert found.what.startswith(f"head 2 of layer {found.layer} adds ")
    model = healthy(0)
    plant_collapse(model)
    smooth = read(model, 0)["over_smoothing"]
    assert smooth.list_places() == "layers 2-3"
    assert "random weights unknown" in smooth.describe()
    row = smooth.row()
    assert row["where"][0] == {"layer": smooth.layer, "head": None, "token": None, "value": smooth.value}


def test_findings_carry_the_rate_of_random_weights() -> None:
    """The attention of GPT-2 is uniform at initialisation, so that uniform attention says nothing about training."""
    model = initialize(random_model("GPT-2", **LARGER).config, 7, dtype=torch.float32)
    run = at.trace(model, list(range(TOKENS)), nulls=2)
    found = {one.kind: one for one in run.findings}
    assert found["uniform_attention"].random_rate == 1.0
    assert found["uniform_attention"].random_total == 2 * 16
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
