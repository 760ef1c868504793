r"""How much attention lengthens the tokens of a real model, layer by layer.

Let x be the residual stream before a layer, a what attention adds to it, and y what the law of the layer acts on: x itself in post-norm
models, x without gain and bias after the norm in pre-norm ones (the law then has them folded in). Measured are

- ``stream``: :math:`\log \|x + a\| / \|x\|`, in root mean squares over tokens: the stream across attention;
- ``rate``: :math:`\sum\langle y, a\rangle / \sum\|y\|^2`, the rate at which the flow of the law lengthens the tokens it is given;
- ``block``: the logarithm across the whole block, with its feed-forward part; only where no norm resets the stream.

The first token, whose norm may be hundreds of times the others', is left out, and counted in ``stream_all``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.checkpoints import Checkpoint, Layer
from attractor.checkpoints.session import Session
from attractor.checkpoints.watching import Passage
from attractor.errors import InputError
from attractor.experiments.practice.subjects import Subject
from attractor.flow import velocity
from attractor.states import Tokens

OUTCOMES = {
    "stream": "norm of the stream across attention, log ratio",
    "stream_all": "the same with the first token",
    "rate": "rate at which the layer's flow lengthens tokens",
    "block": "norm of the stream across the block, log ratio",
}


@dataclass(frozen=True)
class Measured:
    """``outcomes`` (name to one number a layer, None where undefined), means over inputs, and for every layer and head the share of
    inputs whose tokens all lie on one side of an eigenvector with a positive eigenvalue (``separated``)."""

    outcomes: dict[str, list[float | None]]
    separated: list[list[float]]
    tokens: tuple[int, ...]


def folds(layer: Layer) -> bool:
    """Whether the law acts on normalised copies of the stream."""
    return layer.reads_copy


def measure(subject: Subject) -> Measured:
    """Run the model on its inputs."""
    session = Session.open(subject.checkpoint, None, (), None)
    layers = [_Layer(subject.checkpoint, index) for index in range(len(subject.checkpoint.layers))]
    lengths = []
    for index, given in enumerate(subject.inputs, 1):
        try:
            inputs, _ = session.inputs(given)
        except InputError as error:
            begins = f" ({given[:24]!r}...)" if isinstance(given, str) else ""
            raise InputError(f"text {index}{begins} for {subject.name}: {error}") from None
        lengths.append(int(next(iter(inputs.values())).shape[-1]))
        session.run(inputs, False, lambda passage: layers[passage.index].see(passage))
    outcomes = {name: [layer.mean(name) for layer in layers] for name in OUTCOMES}
    return Measured(outcomes, [layer.separated() for layer in layers], tuple(lengths))


class _Layer:
    """What one layer did, input after input."""

    def __init__(self, checkpoint: Checkpoint, index: int) -> None:
        self._layer = checkpoint.layers[index]
        self._rows: list[dict[str, float]] = []
        self._sides: list[list[bool]] = []

    def see(self, passage: Passage) -> None:
        layer, before = self._layer, passage.before.double()
        read = passage.reads.double()
        added = velocity(layer.attention, Tokens(read))
        if layer.output_norm is not None:
            added = layer.output_norm(added)
        acts = read if not folds(layer) or layer.bare_norm is None else layer.bare_norm(before)
        row = {
            "stream": _log_ratio((before + added)[1:], before[1:]),
            "stream_all": _log_ratio(before + added, before),
            "rate": float((acts * added)[1:].sum() / acts[1:].square().sum()),
        }
        if folds(layer):
            row["block"] = _log_ratio(passage.after.double()[1:], before[1:])
        self._rows.append(row)
        self._sides.append([one_sided(self._layer, head, acts) for head in range(layer.heads)])

    def mean(self, name: str) -> float | None:
        values = [row[name] for row in self._rows if name in row]
        return sum(values) / len(values) if values else None

    def separated(self) -> list[float]:
        return torch.tensor(self._sides, dtype=torch.float64).mean(0).tolist()


def one_sided(layer: Layer, head: int, tokens: Tensor) -> bool:
    """The hypothesis of T6: a left eigenvector u of the value with a positive eigenvalue and <u, x> of one sign for all tokens."""
    law = layer.head(head, fold=folds(layer))
    if not isinstance(law, Attention) or law.output is None:
        return False
    # y' (V O) = c y' gives u = V' y, so that <u, x> = <y, V x>
    values, vectors = torch.linalg.eig((law.value @ law.output).mT)
    size = values.abs().max()
    good = (values.imag.abs() <= 1e-12 * size) & (values.real > 1e-12 * size)
    sides = (tokens @ law.value.mT) @ vectors[:, good].real
    return bool(((sides > 0).all(0) | (sides < 0).all(0)).any())


def _log_ratio(after: Tensor, before: Tensor) -> float:
    return float((after.square().sum() / before.square().sum()).log()) / 2
