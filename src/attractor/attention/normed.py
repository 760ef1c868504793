"""Attention whose queries and keys are normalised before they meet."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from attractor.attention.attention import Attention
from attractor.attention.law import Law
from attractor.attention.norms import Norm
from attractor.errors import InputError
from attractor.states import Tokens


@dataclass(frozen=True, eq=False)
class NormedAttention(Law):
    r"""Scores :math:`\text{scale}\,\langle R_i N_q(Q x_i), R_j N_k(K x_j)\rangle` (Qwen 3, Gemma 3, OLMo 2).

    They are not bilinear in the tokens: there is no matrix W with :math:`s_{ij} = \langle x_i, W x_j\rangle`, so what the
    theory says about W does not apply. ``joint`` norms act on all heads together, (h k,); others on every head alone, (k,).
    """

    attention: Attention
    query_norm: Norm
    key_norm: Norm
    joint: bool = False

    def __post_init__(self) -> None:
        k = self.attention.query.shape[-2]
        wanted = k * self.attention.heads if self.joint else k
        for name in ("query_norm", "key_norm"):
            norm = getattr(self, name)
            if norm.dim not in (None, wanted):
                raise InputError(f"the {name} must have dimension {wanted}, got {norm.dim}")

    @property
    def dim(self) -> int:
        return self.attention.dim

    @property
    def heads(self) -> int:
        return self.attention.heads

    def _project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.attention._project(points)
        return self._normed(q, self.query_norm), self._normed(k, self.key_norm)

    def _normed(self, vectors: Tensor, norm: Norm) -> Tensor:
        if not self.joint:
            return norm(vectors)
        rows = norm(vectors.movedim(-3, -2).flatten(-2))
        return rows.unflatten(-1, (self.heads, vectors.shape[-1])).movedim(-2, -3)

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return self.attention._move(tokens, False, self._project)

    def weights(self, tokens: Tokens, time: float = 0.0) -> Tensor:
        """The weights w (..., h, n, n) themselves; masses included."""
        return self.attention._weigh(tokens, self._project)

    def enter(self, tokens: Tokens) -> Tokens:
        return self.attention.enter(tokens)

    def merge_obstacle(self) -> str | None:
        return self.attention.merge_obstacle()

    def member(self, index: Tensor) -> NormedAttention:
        return dataclasses.replace(self, attention=self.attention.member(index))

    def check(self, tokens: Tokens) -> None:
        self.attention.check(tokens)
