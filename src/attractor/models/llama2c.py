"""llama2.c files: weights and tokenizer."""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import CheckpointError
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import find_family
from attractor.models.gguf import to_half_split

BEGIN, END, FIRST_BYTE = 1, 2, 3


@dataclass(frozen=True)
class Llama2cTokenizer:
    """The byte-pair tokenizer of llama2.c, with the interface of transformers that is used here."""

    pieces: tuple[bytes, ...]
    scores: tuple[float, ...]

    @classmethod
    def read(cls, stored: bytes, count: int, where: str) -> Llama2cTokenizer:
        """Read ``count`` pieces with their scores."""
        pieces, scores, place = [], [], 4
        try:
            for _ in range(count):
                score, length = struct.unpack_from("<fi", stored, place)
                piece = stored[place + 8 : place + 8 + length]
                if length < 0 or len(piece) != length:
                    raise ValueError(length)
                pieces.append(piece)
                scores.append(score)
                place += 8 + length
        except (struct.error, ValueError):
            raise CheckpointError(
                f"the tokenizer in {where} ends after {len(pieces)} of {count} pieces; fetch it again"
            ) from None
        return cls(tuple(pieces), tuple(scores))

    @cached_property
    def ids(self) -> dict[bytes, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}  # of equal pieces the later id

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [BEGIN, *self._merge(" " + text)]}

    def _is_byte(self, index: int) -> bool:
        """Whether an id stands for a single byte, which is never merged."""
        return FIRST_BYTE <= index < FIRST_BYTE + 256

    def _merge(self, text: str) -> list[int]:
        ids: list[int] = []
        for character in text:
            stored = character.encode("utf-8")
            ids += [self.ids[stored]] if stored in self.ids else [byte + FIRST_BYTE for byte in stored]
        after, before = [*range(1, len(ids)), -1], list(range(-1, len(ids) - 1))
        waiting: list[tuple[float, int, int, int, int]] = []

        def offer(left: int) -> None:
            right = after[left] if left >= 0 else -1
            if right < 0 or self._is_byte(ids[left]) or self._is_byte(ids[right]):
                return
            found = self.ids.get(self.pieces[ids[left]] + self.pieces[ids[right]])
            if found is not None:
                heapq.heappush(waiting, (-self.scores[found], left, ids[left], ids[right], found))

        for left in range(len(ids) - 1):
            offer(left)
        while waiting:
            _, left, one, other, merged = heapq.heappop(waiting)
            right = after[left]
            if ids[left] != one or right < 0 or ids[right] != other:
                continue  # one of the two is part of another merge
            ids[left], ids[right] = merged, -1
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(left)
            offer(before[left])
        return [index for index in ids if index >= 0]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.pieces[index].decode("utf-8", errors="replace").strip("\n") or "\\n" for index in ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that form no character are replaced."""
        parts = []
        for index in ids:
            if index in (BEGIN, END) and skip_special_tokens:
                continue
            parts.append(bytes([index - FIRST_BYTE]) if self._is_byte(index) else self.pieces[index])
        return b"".join(parts).decode("utf-8", errors="replace").removeprefix(" ")


HEADER = struct.Struct("<7i")
MAGIC = 0x616B3432  # later versions begin with "ak42"
THETA, EPS = 1e4, 1e-5  # constants of llama2.c


@dataclass(frozen=True)
class Header:
    """The header of a file: sizes of the model."""

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
    def is_plausible(self) -> bool:
        """Whether these can be the sizes of a model; other files begin with other numbers."""
        sizes = (self.dim, self.hidden, self.layers, self.heads, self.groups, abs(self.vocabulary), self.context)
        within = all(0 < size < 2**20 for size in sizes) and self.layers < 1000
        return within and self.dim % self.heads == 0 and self.heads % self.groups == 0 and self.head_dim % 2 == 0

    @property
    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the arrays in the order of the file; arrays of layers have a leading axis."""
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
        """Size of the file in bytes."""
        return HEADER.size + 4 * sum(math.prod(shape) for _, shape in self.tensors)


def is_llama2c(path: Path) -> bool:
    """Whether a file has a header of llama2.c."""
    with path.open("rb") as file:
        start = file.read(HEADER.size)
    if len(start) < HEADER.size:
        return False
    return int.from_bytes(start[:4], "little") == MAGIC or Header(*HEADER.unpack(start)).is_plausible


def open_llama2c(path: Path, dtype: torch.dtype) -> Checkpoint:
    """Open a file of llama2.c."""
    from transformers import LlamaConfig

    tensors = Llama2cTensors(path)
    shape = tensors.header
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
    return Checkpoint(str(path), find_family("llama", str(path)), config, tensors, dtype)


class Llama2cTensors:
    """The tensors of a file under their names in transformers, read one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            numbers = HEADER.unpack(file.read(HEADER.size))
        if numbers[0] == MAGIC:
            raise CheckpointError(
                f"{path} is of version {numbers[1]} of llama2.c's format; attractor reads the first one"
            )
        self.header, there = Header(*numbers), path.stat().st_size
        if there < self.header.size:
            raise CheckpointError(
                f"{path} is truncated: its header calls for {self.header.size:,} bytes and it has {there:,}; fetch it again"
            )
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        start = HEADER.size
        for name, shape in self.header.tensors:
            inside = name.startswith(("model.", "lm_head", "cosines", "sines"))
            each = shape if inside else shape[1:]
            for index in range(1 if inside else self.header.layers):
                place = name if inside else f"model.layers.{index}.{name}.weight"
                self._places[place] = (start, each)
                start += 4 * math.prod(each)
        self._check_angles()

    def _check_angles(self) -> None:
        """Raise if the cosines in the file are not those of THETA."""
        p = np.arange(self.header.head_dim // 2)
        angles = np.outer(np.arange(self.header.context), THETA ** (-2 * p / self.header.head_dim))
        if not np.allclose(self.read_array("cosines").numpy(), np.cos(angles), atol=1e-3):
            raise CheckpointError(f"{self.path} has rotary angles other than those of theta = {THETA:g}")

    def read_array(self, name: str) -> Tensor:
        """Read an array as it is stored."""
        start, shape = self._places[name]
        return torch.from_numpy(np.fromfile(self.path, "<f4", math.prod(shape), offset=start)).reshape(shape)

    def names(self) -> Collection[str]:
        return [name for name in self._places if name not in ("cosines", "sines")]

    def read(self, name: str) -> Tensor:
        heads = {"q_proj": self.header.heads, "k_proj": self.header.groups}.get(name.split(".")[-2])
        return self.read_array(name) if heads is None else to_half_split(self.read_array(name), heads)

    def describe(self) -> str:
        return str(self.path)

    def tokenizer(self) -> Any:
        """The tokenizer, appended to the tensors or in a file tokenizer.bin in the same folder."""
        separate, appended = self.path.parent / "tokenizer.bin", self.path.stat().st_size > self.header.size
        if not appended and not separate.is_file():
            raise CheckpointError(
                f"{self.path} has no tokenizer: there is no tokenizer.bin in its folder; give token ids"
            )
        with (self.path if appended else separate).open("rb") as file:
            file.seek(self.header.size if appended else 0)
            return Llama2cTokenizer.read(
                file.read(), abs(self.header.vocabulary), str(self.path if appended else separate)
            )
