"""Files of llama2.c: seven whole numbers, then the tensors of a Llama in float32, one kind after the other.

The header is dim, hidden dim, layers, heads, key heads, vocabulary (negative where the classifier has its own matrix) and context.
Rotary pairs are neighbours (2p, 2p+1); transformers pairs across the halves of a head, so rows of q and k are permuted as they are
read. ``llama2.data`` is such a file with its tokenizer appended.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.family import family_of
from attractor.checkpoints.gguf import across_halves
from attractor.checkpoints.pieces import Pieces
from attractor.errors import CheckpointError

HEADER = struct.Struct("<7i")
MAGIC = 0x616B3432  # later versions begin with "ak42"
THETA, EPS = 1e4, 1e-5  # constants of llama2.c


@dataclass(frozen=True)
class Shape:
    """The header."""

    dim: int
    hidden: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    context: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def plausible(self) -> bool:
        """Whether these may be the sizes of a model at all: other files begin with other numbers."""
        sizes = (self.dim, self.hidden, self.layers, self.heads, self.groups, abs(self.vocabulary), self.context)
        within = all(0 < size < 2**20 for size in sizes) and self.layers < 1000
        return within and self.dim % self.heads == 0 and self.heads % self.groups == 0 and self.head_dim % 2 == 0

    @property
    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Every array in the order of the file; those of layers have a leading axis for them."""
        dim, keys, vocabulary = self.dim, self.groups * self.head_dim, abs(self.vocabulary)
        arrays = [
            ("model.embed_tokens.weight", (vocabulary, dim)),
            ("input_layernorm", (self.layers, dim)),
            ("self_attn.q_proj", (self.layers, dim, dim)),
            ("self_attn.k_proj", (self.layers, keys, dim)),
            ("self_attn.v_proj", (self.layers, keys, dim)),
            ("self_attn.o_proj", (self.layers, dim, dim)),
            ("post_attention_layernorm", (self.layers, dim)),
            ("mlp.gate_proj", (self.layers, self.hidden, dim)),
            ("mlp.down_proj", (self.layers, dim, self.hidden)),
            ("mlp.up_proj", (self.layers, self.hidden, dim)),
            ("model.norm.weight", (dim,)),
            ("cosines", (self.context, self.head_dim // 2)),
            ("sines", (self.context, self.head_dim // 2)),
        ]
        return arrays if self.vocabulary > 0 else [*arrays, ("lm_head.weight", (vocabulary, dim))]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return HEADER.size + 4 * sum(math.prod(shape) for _, shape in self.tensors)


def recognised(path: Path) -> bool:
    """Whether a file begins as those of llama2.c do."""
    with path.open("rb") as file:
        start = file.read(HEADER.size)
    if len(start) < HEADER.size:
        return False
    return int.from_bytes(start[:4], "little") == MAGIC or Shape(*HEADER.unpack(start)).plausible


def opened(path: Path, dtype: torch.dtype) -> Checkpoint:
    """The checkpoint in a file of llama2.c."""
    from transformers import LlamaConfig

    tensors = Llama2cTensors(path)
    shape = tensors.shape
    config = LlamaConfig(
        vocab_size=abs(shape.vocabulary),
        hidden_size=shape.dim,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        max_position_embeddings=shape.context,
        rms_norm_eps=EPS,
        tie_word_embeddings=shape.vocabulary > 0,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        bos_token_id=1,
        eos_token_id=2,
    )
    return Checkpoint(str(path), family_of("llama", str(path)), config, tensors, dtype)


class Llama2cTensors:
    """The tensors of a file under the names that transformers gives them, read one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            numbers = HEADER.unpack(file.read(HEADER.size))
        if numbers[0] == MAGIC:
            raise CheckpointError(
                f"{path} is of version {numbers[1]} of llama2.c's format; attractor reads the first one"
            )
        self.shape, there = Shape(*numbers), path.stat().st_size
        if there < self.shape.size:
            raise CheckpointError(
                f"{path} is truncated: its header calls for {self.shape.size:,} bytes and it has {there:,}; fetch it again"
            )
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        start = HEADER.size
        for name, shape in self.shape.tensors:
            inside = name.startswith(("model.", "lm_head", "cosines", "sines"))
            each = shape if inside else shape[1:]
            for index in range(1 if inside else self.shape.layers):
                place = name if inside else f"model.layers.{index}.{name}.weight"
                self._places[place] = (start, each)
                start += 4 * math.prod(each)
        self._check_angles()

    def _check_angles(self) -> None:
        """The file brings its own cosines: those of another theta would be another model."""
        p = np.arange(self.shape.head_dim // 2)
        angles = np.outer(np.arange(self.shape.context), THETA ** (-2 * p / self.shape.head_dim))
        if not np.allclose(self.stored("cosines").numpy(), np.cos(angles), atol=1e-3):
            raise CheckpointError(f"{self.path} turns queries and keys by other angles than those of theta = {THETA:g}")

    def stored(self, name: str) -> Tensor:
        """An array as it lies in the file."""
        start, shape = self._places[name]
        return torch.from_numpy(np.fromfile(self.path, "<f4", math.prod(shape), offset=start)).reshape(shape)

    def names(self) -> Collection[str]:
        return [name for name in self._places if name not in ("cosines", "sines")]

    def read(self, name: str) -> Tensor:
        heads = {"q_proj": self.shape.heads, "k_proj": self.shape.groups}.get(name.split(".")[-2])
        return self.stored(name) if heads is None else across_halves(self.stored(name), heads)

    def describe(self) -> str:
        return str(self.path)

    def tokenizer(self) -> Any:
        """The tokenizer that follows the tensors, or lies beside the file as tokenizer.bin."""
        beside, appended = self.path.parent / "tokenizer.bin", self.path.stat().st_size > self.shape.size
        if not appended and not beside.is_file():
            raise CheckpointError(f"{self.path} has no tokenizer: there is no tokenizer.bin beside it; give token ids")
        with (self.path if appended else beside).open("rb") as file:
            file.seek(self.shape.size if appended else 0)
            return Pieces.read(file.read(), abs(self.shape.vocabulary), str(self.path if appended else beside))
