"""Files of llama2.c: against a forward written here from its definition, and against transformers."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attractor as at
from attractor import assets
from attractor.errors import CheckpointError, FetchError
from attractor.models.llama2c import Llama2cTensors, Llama2cTokenizer
from attractor.models.loading import load_model

SIZES = {"dim": 24, "hidden": 40, "layers": 2, "heads": 4, "groups": 2, "vocabulary": 300, "context": 16}


def written(path: Path, draw: torch.Generator, **changes: int) -> Path:
    """A random model as llama2.c exports it, array after array."""
    s = {**SIZES, **changes}
    k = s["dim"] // s["heads"]
    keys, count = s["groups"] * k, abs(s["vocabulary"])
    normal = lambda *shape: torch.randn(*shape, generator=draw) * shape[-1] ** -0.5  # noqa: E731
    gain = lambda *shape: 1 + 0.1 * torch.randn(*shape, generator=draw)  # noqa: E731
    layers, dim, hidden = s["layers"], s["dim"], s["hidden"]
    angles = torch.outer(torch.arange(s["context"]).double(), 1e4 ** (-torch.arange(0, k, 2).double() / k))
    arrays = [normal(count, dim), gain(layers, dim), normal(layers, dim, dim), normal(layers, keys, dim)]
    arrays += [normal(layers, keys, dim), normal(layers, dim, dim), gain(layers, dim), normal(layers, hidden, dim)]
    arrays += [normal(layers, dim, hidden), normal(layers, hidden, dim), gain(dim), angles.cos(), angles.sin()]
    arrays += [normal(count, dim)] if s["vocabulary"] < 0 else []
    header = struct.pack("<7i", *s.values())
    path.write_bytes(header + b"".join(array.float().numpy().tobytes() for array in arrays))
    return path


def plain_forward(path: Path, ids: list[int]) -> tuple[list[Tensor], Tensor]:
    """The stream before every block and after the last, and the logits: llama2.c's run in a few lines of torch, in float64."""
    stored = path.read_bytes()
    d, hidden, layers, heads, groups, vocabulary, context = struct.unpack("<7i", stored[:28])
    k, place = d // heads, 28

    def take(*shape: int) -> Tensor:
        nonlocal place
        count = int(np.prod(shape))
        found = torch.from_numpy(np.frombuffer(stored, "<f4", count, place).copy()).reshape(shape).double()
        place += 4 * count
        return found

    emb, norm1 = take(abs(vocabulary), d), take(layers, d)
    wq, wk, wv = take(layers, d, d), take(layers, groups * k, d), take(layers, groups * k, d)
    wo, norm2 = take(layers, d, d), take(layers, d)
    w1, w2, w3, last = take(layers, hidden, d), take(layers, d, hidden), take(layers, hidden, d), take(d)
    cos, sin = take(context, k // 2), take(context, k // 2)
    classifier = take(-vocabulary, d) if vocabulary < 0 else emb

    def rms(x: Tensor, g: Tensor) -> Tensor:
        return g * x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()

    def turned(x: Tensor) -> Tensor:  # (n, heads, k), neighbours are a pair
        c, s = cos[: len(x), None], sin[: len(x), None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)

    x = emb[ids]
    states = [x]
    for index in range(layers):
        n, h = len(ids), rms(x, norm1[index])
        q = turned((h @ wq[index].T).reshape(n, heads, k))
        key = turned((h @ wk[index].T).reshape(n, groups, k)).repeat_interleave(heads // groups, 1)
        v = (h @ wv[index].T).reshape(n, groups, k).repeat_interleave(heads // groups, 1)
        scores = torch.einsum("ihk,jhk->hij", q, key) / k**0.5
        weights = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
        x = x + torch.einsum("hij,jhk->ihk", weights, v).reshape(n, d) @ wo[index].T
        h = rms(x, norm2[index])
        x = x + (torch.nn.functional.silu(h @ w1[index].T) * (h @ w3[index].T)) @ w2[index].T
        states.append(x)
    return states, rms(x, last) @ classifier.T


@pytest.mark.parametrize("vocabulary", [300, -300])
def test_the_whole_model(vocabulary: int, tmp_path: Path) -> None:
    """Our reading, run by transformers, against the plain forward; and our laws against the model's own attention."""
    path = written(tmp_path / "model.bin", torch.Generator().manual_seed(1), vocabulary=vocabulary)
    opened, ids = at.checkpoint(path), [1, 7, 200, 33, 33, 299]
    states, _ = plain_forward(path, ids)
    torch.testing.assert_close(at.trace(opened, ids).points, torch.stack(states), rtol=1e-5, atol=1e-5)
    assert opened.verify().error < 1e-12
    layer = opened.layers[1]
    assert (layer.heads, layer.groups, opened.config.tie_word_embeddings) == (4, 2, vocabulary > 0)


def test_logits_by_transformers(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    path = written(tmp_path / "model.bin", torch.Generator().manual_seed(2), vocabulary=-300)
    tensors = Llama2cTensors(path)
    model: Any = LlamaForCausalLM(at.checkpoint(path).config).double().eval()
    absent = model.load_state_dict({name: tensors.read(name).double() for name in tensors.names()}, strict=False)
    assert not absent.missing_keys
    assert not absent.unexpected_keys
    ids = [4, 250, 9, 17]
    with torch.no_grad():
        torch.testing.assert_close(
            model(torch.tensor([ids])).logits[0], plain_forward(path, ids)[1], rtol=1e-5, atol=1e-6
        )


def test_damaged_files(tmp_path: Path) -> None:
    path = written(tmp_path / "model.bin", torch.Generator().manual_seed(1))
    with pytest.raises(CheckpointError, match=r"has no tokenizer: there is no tokenizer\.bin in its folder"):
        at.trace(path, "words")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="truncated: its header calls for"):
        at.checkpoint(path)
    path.write_bytes(struct.pack("<2i", 0x616B3432, 1) + bytes(100))
    with pytest.raises(CheckpointError, match="version 1 of llama2"):
        at.checkpoint(path)
    path.write_bytes(whole + struct.pack("<i", 5) + struct.pack("<fi", 0.0, 9) + b"short")
    with pytest.raises(CheckpointError, match="ends after 0 of 300 pieces"):
        at.trace(path, "words")
    sizes = [*SIZES.values()]
    at_cosines = len(whole) - 4 * 2 * SIZES["context"] * (sizes[0] // sizes[3] // 2)
    path.write_bytes(whole[:at_cosines] + bytes(len(whole) - at_cosines))
    with pytest.raises(CheckpointError, match="rotary angles other"):
        at.checkpoint(path)
    torch.save({"a": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="single pickle"):
        at.checkpoint(path)


def naive(pieces: Llama2cTokenizer, text: str) -> list[int]:
    """The loop of llama2.c: look at every pair, merge the best, begin again; bytes without a piece are left alone."""
    ids = []
    for character in " " + text:
        stored = character.encode()
        later = [index for index, piece in enumerate(pieces.pieces) if piece == stored]
        ids += [later[-1]] if later else [byte + 3 for byte in stored]
    while True:
        best = (-1e10, -1, -1)
        for at_, (left, right) in enumerate(pairwise(ids)):
            joined = pieces.pieces[left] + pieces.pieces[right]
            if joined in pieces.ids and not any(3 <= index < 259 for index in (left, right)):
                score = pieces.scores[pieces.ids[joined]]
                best = (score, at_, pieces.ids[joined]) if score > best[0] else best
        if best[1] < 0:
            return [1, *ids]
        ids[best[1] : best[1] + 2] = [best[2]]


def test_pieces() -> None:
    singles = [chr(byte).encode() for byte in range(256)]
    words = [b" ", b"t", b"h", b"e", b"th", b"he", b"the", b" the", b"ee", b" t", "é".encode()]
    stored = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *singles, *words]
    scores = [0.0] * 259 + [0, 0, 0, 0, -1, -2, -3, -4, -2, -5, 0]
    pieces = Llama2cTokenizer(tuple(stored), tuple(map(float, scores)))
    for text in ("the thee", "eeehethe", "é☕ the\n", "théé the the", ""):
        assert pieces(text)["input_ids"] == naive(pieces, text)
        assert pieces.decode(pieces(text)["input_ids"]) == text
    assert pieces("e")["input_ids"] == [1, 259, 262]  # the later of the two ids of a byte
    assert pieces.convert_ids_to_tokens([1, 265, 13]) == ["<s>", "the", "\\n"]


@pytest.fixture(scope="module")
def stories() -> Path:
    try:
        return assets.fetch("stories15M")
    except FetchError as error:
        pytest.skip(str(error))


@pytest.mark.model
def test_stories(stories: Path) -> None:
    """The real model: its stream and its logits by the plain forward, and that it tells a story."""
    opened, text = at.checkpoint("stories15M"), "Once upon a time, there was a little girl named Lily."
    assert (opened.name, opened.family.name, len(opened.layers), opened.dim) == ("stories15M", "llama", 6, 288)
    run = at.trace(opened, text)
    assert run.words[:6] == ("<s>", " Once", " upon", " a", " time", ",")
    ids = opened.tensors.tokenizer()(text)["input_ids"]  # type: ignore[attr-defined]
    states, logits = plain_forward(stories, ids)
    torch.testing.assert_close(run.points, torch.stack(states), rtol=1e-3, atol=1e-3)
    losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    assert float(losses) < 1.2  # a wrong reading of rotary pairs or of ids costs nats
    assert opened.verify(layers=[0, 5]).error < 1e-12
    assert sum(part.numel() for part in load_model(opened).parameters()) == 15191712
