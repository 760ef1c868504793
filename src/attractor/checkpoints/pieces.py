"""The tokenizer of llama2.c: pieces with scores, the best pair of neighbours merged again and again.

``tokenizer.bin`` is the length of the longest piece, then for each piece its score, length and bytes. Ids 3 to 258 stand for single
bytes and are stored as characters, so that such a piece occurs twice: text is read with the later id, and bytes of a character
that has no piece with the earlier ones.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from attractor.errors import CheckpointError

BEGIN, END, FIRST_BYTE = 1, 2, 3


@dataclass(frozen=True)
class Pieces:
    """Called as the tokenizers of transformers are, as far as they are needed here."""

    pieces: tuple[bytes, ...]
    scores: tuple[float, ...]

    @classmethod
    def read(cls, stored: bytes, count: int, where: str) -> Pieces:
        """The first ``count`` pieces of a file."""
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
        return {piece: index for index, piece in enumerate(self.pieces)}  # of a piece that occurs twice the later id

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [BEGIN, *self._merged(" " + text)]}

    def _single(self, index: int) -> bool:
        """Whether an id stands for a byte, which is never merged: as a character it would be another text."""
        return FIRST_BYTE <= index < FIRST_BYTE + 256

    def _merged(self, text: str) -> list[int]:
        ids: list[int] = []
        for character in text:
            stored = character.encode("utf-8")
            ids += [self.ids[stored]] if stored in self.ids else [byte + FIRST_BYTE for byte in stored]
        after, before = [*range(1, len(ids)), -1], list(range(-1, len(ids) - 1))
        waiting: list[tuple[float, int, int, int, int]] = []

        def offer(left: int) -> None:
            right = after[left] if left >= 0 else -1
            if right < 0 or self._single(ids[left]) or self._single(ids[right]):
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
                continue  # one of the two has been merged otherwise
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
        """Text of token ids; single bytes that make no character are shown as such."""
        parts = []
        for index in ids:
            if index in (BEGIN, END) and skip_special_tokens:
                continue
            parts.append(bytes([index - FIRST_BYTE]) if self._single(index) else self.pieces[index])
        return b"".join(parts).decode("utf-8", errors="replace").removeprefix(" ")
