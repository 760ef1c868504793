"""Phi 1, 1.5 and 2: biases everywhere, LayerNorm, a part of each head turned, attention and feed-forward in parallel."""

from __future__ import annotations

from attractor.laws import LayerNorm, Norm
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Phi(Decoder):
    name = "phi"
    title = "Phi 1, 1.5, 2"
    model_types = ("phi",)
    output = "dense"
    parallel = True

    def norm(self, config: Config, read: Reader, name: str) -> Norm:
        return _affine(read, name, config.hidden_size, config.layer_norm_eps)

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | None, Norm | None]:
        if not config.qk_layernorm:
            return None, None
        k = self.head_dim(config)
        query, key = (_affine(read, path + name, k, config.layer_norm_eps) for name in ("q_layernorm", "k_layernorm"))
        return query, key


def _affine(read: Reader, name: str, size: int, eps: float) -> LayerNorm:
    return LayerNorm(read(f"{name}.weight", size), read(f"{name}.bias", size), eps)
