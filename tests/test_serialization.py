"""Records: what is written is what is read, through JSON and arrays, without pickle."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import pytest
import torch

from attractor.errors import MissingExtraError, StoreError, UnsupportedError
from attractor.laws import (
    MLP,
    Absolute,
    Affine,
    Alibi,
    Attention,
    Block,
    Capped,
    Causal,
    Chunked,
    Clip,
    Combined,
    Disentangled,
    DynamicRotary,
    Feature,
    GridRotary,
    LatentAttention,
    LayerNorm,
    LongRotary,
    NormedAttention,
    NormedOutput,
    Relative,
    Rescaled,
    RMSNorm,
    Rotary,
    ScaledRotary,
    Schedule,
    Sigmoid,
    Sinkhorn,
    Stack,
    Temperature,
    Total,
    Visible,
    Window,
    list_kernels,
)
from attractor.laws.blocks import EquiangularNorm, SpanNorm
from attractor.laws.closure import Closure
from attractor.laws.equiangular import EquiangularAttention
from attractor.serialization import Record, citations, decode, encode, tensors, to_frame
from attractor.spaces import Ellipsoid, Euclidean, Sphere
from attractor.states import Density, Equiangular, Gaussian, Tokens


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def attention(**options: Any) -> Attention:
    return Attention(draw(2, 2, 4), draw(2, 2, 4, seed=1), draw(2, 4, 4, seed=2), **options)


def mlp() -> MLP:
    return MLP(draw(5, 4), draw(5), draw(4, 5), None, "silu", gate=draw(5, 4, seed=3))


BLOCK = Block(
    attention(mask="causal"),
    mlp(),
    "peri",
    (LayerNorm(draw(4), draw(4), 1e-5), RMSNorm(), RMSNorm(draw(4)), LayerNorm()),
)
RECORDS: dict[str, Record] = {
    **{kernel.name: kernel() for kernel in list_kernels()},
    "sinkhorn with options": Sinkhorn(0.3, 1e-9, 77),
    "sigmoid with a bias": Sigmoid(-2.0),
    "causal": Causal(),
    "window": Window(5, causal=False),
    "visible": Visible(torch.tensor([[True, False], [True, True]])),
    "absolute": Absolute(draw(3, 4), when="input", on="qk"),
    "rotary": Rotary(theta=500.0, dim=2),
    "scaled rotary": ScaledRotary(angles=(1.0, 0.25)),
    "alibi": Alibi(draw(2)),
    "combined": Combined((Absolute(draw(3, 4)), Rotary())),
    "relative": Relative(draw(8, 2), reach=20),
    "capped at 30": Capped(30.0),
    "feature": Feature(draw(3, 4), draw(3), RMSNorm(draw(3))),
    "normed attention": NormedAttention(attention(), RMSNorm(draw(2)), RMSNorm()),
    "latent attention": LatentAttention(
        (Feature(draw(3, 4)), Feature(draw(2, 4), None, RMSNorm())),
        draw(2, 2, 5),
        draw(2, 2, 5, seed=1),
        draw(2, 3, 5, seed=2),
        draw(2, 4, 3),
    ),
    "clip": Clip(0.5),
    "clipped attention": NormedAttention(attention(), Clip(0.5), Clip(0.5), value_norm=Clip(0.5)),
    "gated attention": NormedAttention(
        attention(),
        RMSNorm(),
        RMSNorm(),
        query_gain=draw(2, 2),
        gate=draw(2, 4, 4),
        gate_bias=draw(2, 4),
        sinks=draw(2),
    ),
    "normed output": NormedOutput(attention(), RMSNorm(draw(4))),
    "chunked": Chunked(5),
    "disentangled": Disentangled(draw(2, 6, 2), None, buckets=3, reach=9),
    "long rotary": LongRotary(angles=(1.0, 0.25), long_angles=(0.5, 0.1), limit=8),
    "dynamic rotary": DynamicRotary(dim=4, factor=2.0, limit=8),
    "grid rotary": GridRotary(100.0, 2),
    "temperature": Temperature(4.0, 0.2),
    "layernorm": LayerNorm(draw(3), draw(3, seed=1), 1e-5),
    "rmsnorm": RMSNorm(),
    "euclidean": Euclidean(),
    "sphere": Sphere(2.5),
    "ellipsoid": Ellipsoid(np.diag([1.0, 2.0])),
    "tokens": Tokens(draw(2, 3, 4), masses=[0.1, 0.2, 0.3], positions=[0, 2, 1]),
    "plain tokens": Tokens(draw(3, 4)),
    "single tokens": Tokens(draw(3, 4), dtype=torch.float32),
    "gaussian": Gaussian(draw(3), np.eye(3)),
    "density": Density.from_modes([0.2, 0.1j], size=24),
    "equiangular": Equiangular([0.1, -0.2], 5, 2.0),
    "equiangular attention": EquiangularAttention(attention(), 5),
    "equiangular norm": EquiangularNorm(n=3, size=4),
    "norm in a subspace": SpanNorm(direction=torch.tensor([1.0, 0.0])),
    "attention": attention(),
    "full attention": Attention(
        *(draw(2, 2, 4, seed=seed) for seed in range(3)),
        kernel=Sigmoid(-1.0),
        mask=np.tri(3, dtype=bool),
        positions=Rotary(),
        scale=0.25,
        output=draw(2, 4, 2, seed=4),
        query_bias=draw(2, 2),
        key_bias=draw(2),
        value_bias=draw(2, 2, seed=5),
        output_bias=draw(4),
    ),
    "single attention": Attention(*(torch.eye(4) for _ in range(3))),
    "affine": Affine(draw(4, 4), draw(4)),
    "mlp": mlp(),
    "block": BLOCK,
    "schedule": Schedule.interpolate([0.0, 1.5], [attention(), attention(scale=2.0)]),
    "rescaled": Rescaled(Attention(*(torch.eye(4, dtype=torch.float64) for _ in range(3)))),
    "stack": Stack((attention(), BLOCK), duration=0.5),
    "closure": Closure(attention()),
    "total": attention() + mlp() + Affine(np.eye(4)),
}


def equal(one: Any, other: Any) -> bool:
    """Same classes, same tensors bit for bit and in the same precision, same everything else."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Record):
        assert dataclasses.is_dataclass(one)
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(equal(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def through_json(value: Any) -> Any:
    data, arrays = encode(value)
    return decode(json.loads(json.dumps(data)), {name: array.copy() for name, array in arrays.items()})


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_written_is_read(name: str) -> None:
    assert equal(through_json(RECORDS[name]), RECORDS[name])


def test_every_concrete_record_is_in_the_table() -> None:
    """A new law, mask, encoding, norm, space or state must be added above."""

    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    packages = ("attractor.laws", "attractor.spaces", "attractor.states")
    ours = {kind for kind in below(Record) if kind.__module__.startswith(packages)}
    concrete = {
        kind
        for kind in ours
        if dataclasses.is_dataclass(kind) and "__dataclass_fields__" in vars(kind) and not kind.__subclasses__()
    }
    assert {kind.__name__ for kind in concrete - {type(record) for record in RECORDS.values()}} == set()


def test_moved_tokens_keep_their_precision() -> None:
    moved = Tokens(draw(3, 4), dtype=torch.float32).with_points(torch.ones(3, 4))
    assert equal(through_json(moved), moved)


def test_a_law_that_was_read_moves_tokens_alike() -> None:
    tokens = Tokens(draw(3, 4, seed=8))
    for record in RECORDS.values():
        if isinstance(
            record, (Attention, NormedAttention, LatentAttention, Block, MLP, Affine, Stack, Total, Schedule)
        ):
            torch.testing.assert_close(
                through_json(record).velocity(tokens, 0.6), record.velocity(tokens, 0.6), rtol=0, atol=0
            )


def test_containers_and_shared_arrays() -> None:
    data, arrays = encode([Sphere(), (attention(), None, 3, 0.5, True, "word")])
    assert len(arrays) == 3
    more, arrays = encode(Gaussian(draw(3), np.eye(3)), arrays)
    assert len(arrays) == 5
    first = decode(data, arrays)
    assert isinstance(first, tuple)
    assert first[0] == Sphere()
    assert first[1][1:] == (None, 3, 0.5, True, "word")
    assert equal(decode(more, arrays), Gaussian(draw(3), np.eye(3)))


def test_parameters_that_learn_are_written_as_numbers() -> None:
    law = Attention(*(torch.eye(3, dtype=torch.float64, requires_grad=True) for _ in range(3)))
    read = through_json(law)
    assert not read.query.requires_grad
    assert torch.equal(read.query, torch.eye(3, dtype=torch.float64))


def test_functions_are_refused() -> None:
    with pytest.raises(
        UnsupportedError, match="a function cannot be written to a store; laws given as Python functions"
    ):
        encode(Schedule(lambda time: attention()))


def test_unknown_records_are_refused() -> None:
    with pytest.raises(StoreError, match="the store holds a 'Teapot', which this version of attractor does not have"):
        decode({"record": "Teapot", "fields": {}}, {})
    with pytest.raises(StoreError, match="the store holds a None"):
        decode({"fields": {}}, {})


@pytest.mark.parametrize(
    "data",
    [
        {"array": "array9"},
        {"record": "Sphere"},
        {"record": "Sphere", "fields": {"colour": 3}},
        {"dtype": "teapot"},
        {"dtype": "load"},
    ],
)
def test_damaged_data_is_a_store_error(data: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="the store is damaged"):
        decode(data, {})


def test_tensors_and_citations_reach_into_nested_records() -> None:
    assert len(tensors(BLOCK)) == 3 + 4 + 3
    assert len(tensors([Sphere(), attention()])) == 3
    assert citations(BLOCK) == ["geshkovski2023mathematical", "vaswani2017attention", "ba2016layer", "zhang2019root"]
    assert citations([Rotary(), Sinkhorn()]) == ["su2021roformer", "sander2022sinkformers", "cuturi2013sinkhorn"]
    assert citations(3) == []


def test_frames_have_a_line_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = to_frame([{"head": 0, "low": -1.0}, {"head": 1, "low": 2.0}])
    assert list(frame.columns) == ["head", "low"]
    assert list(to_frame([Sphere(2.0)])["radius"]) == [2.0]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"attractor\[pandas\]"):
        to_frame([])
