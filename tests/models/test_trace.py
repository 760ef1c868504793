"""Tokens of a model along depth: against the model's own hidden states, and against plain formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.errors import CheckpointError, InputError, MemoryShortageError, UnsupportedError
from attractor.models import trace_texts
from attractor.models.hooks import freeze_norms, remove_positions
from attractor.models.measurements import query_expansion

IDS = [5, 9, 2, 33, 17, 8, 41, 3]
CASES = (
    "GPT-2",
    "Llama, grouped",
    "Pythia, a quarter turned",
    "BERT, MiniLM",
    "Gemma 2, capped scores",
    "Qwen 3, q/k norm",
    "ESM-2",
    "BLOOM, 6 heads",
)


def hidden_states(model: Any, ids: list[int]) -> torch.Tensor:
    """The stream before every block, as the model itself reports it (the last entry has passed the final norm)."""
    with torch.no_grad():
        states = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.cat(states[:-1]).double()


@pytest.mark.parametrize("case", CASES)
def test_states_are_the_models_hidden_states(case: str) -> None:
    model = random_model(case)
    run = at.trace(model, IDS)
    assert run.points.shape[:2] == (3, len(IDS))
    torch.testing.assert_close(run.points[:-1], hidden_states(model, IDS), rtol=0, atol=0)
    np.testing.assert_allclose(run.observe("cosine"), run.measurements.curves["cosine"])  # type: ignore[union-attr]
    assert run.outcome.name == "reached"


@pytest.mark.parametrize("case", CASES)
def test_attention_and_feedforward_make_up_the_block(case: str) -> None:
    """Without feed-forward a block moves tokens by its attention alone, and that is the law's velocity."""
    model = random_model(case)
    opened = at.checkpoint(model)
    run = at.trace(opened, IDS, without=["feedforward"])
    layer, found = opened.layers[0], run.measurements
    assert found is not None
    assert float(found.blocks["feedforward"].abs().max()) == 0
    if layer.placement != "post":
        before = run.points[0]
        read = before if layer.norm is None else layer.norm(before)
        moved = at.velocity(layer.attention, at.Tokens(read))
        torch.testing.assert_close(run.points[1], before + moved, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["Llama, grouped", "GPT-2", "BERT, MiniLM"])
def test_expansion_is_the_divergence_of_the_audited_law(case: str) -> None:
    """Trace and audit use one convention: the divergence is that of the folded head at the normalised token, by autograd."""
    model = random_model(case).double()
    opened = at.checkpoint(model)
    run = at.trace(opened, IDS)
    layer = opened.layers[0]
    fold = layer.reads_copy
    assert run.measurements is not None
    before = run.points[0]
    x = layer.bare_norm(before) if fold else before  # type: ignore[misc]
    head: Any = layer.head(1, fold=fold)

    def move(own: torch.Tensor, index: int) -> torch.Tensor:
        """The velocity of one token as a function of its query alone: keys and values stay."""
        moved = torch.cat((x[:index], own[None], x[index + 1 :]))
        q, _ = head._project(moved)
        fixed = lambda points: (head._project(points)[0] * 0 + q, head._project(x)[1])  # noqa: E731
        return head._move(at.Tokens(x), False, fixed)[index]

    divergence = [
        float(torch.autograd.functional.jacobian(lambda own, at=index: move(own, at), x[index]).trace())  # type: ignore[union-attr]
        for index in range(len(x))
    ]
    assert float(run.measurements.heads["expansion"][0, 1]) == pytest.approx(np.mean(divergence), rel=1e-6)


def test_without_attention_nothing_mixes() -> None:
    """Tokens no longer see each other: changing one leaves the others alone."""
    model = random_model("Llama, grouped")
    one, other = (at.trace(model, ids, without=["attention"]).points for ids in (IDS, [*IDS[:3], 60, *IDS[4:]]))
    same = [index for index in range(len(IDS)) if index != 3]
    torch.testing.assert_close(one[:, same], other[:, same])
    assert float((one[1:, 3] - other[1:, 3]).abs().max()) > 1e-3


@pytest.mark.parametrize("case", ["Llama, grouped", "BERT, MiniLM", "GPT-2", "GPT-J", "T5", "Qwen 3, q/k norm"])
def test_without_positions_order_does_not_matter(case: str) -> None:
    """Any token of an encoder sees a set, and so does the last one of a decoder, whose first block is compared."""
    model, depth = random_model(case), slice(None if case in ("BERT, MiniLM", "T5") else 2)
    swapped = [IDS[2], IDS[1], IDS[0], *IDS[3:]]
    before = {name: part.clone() for name, part in model.state_dict(keep_vars=True).items()}
    one, other = (at.trace(model, ids, without=["positions"]).points[depth, -1] for ids in (IDS, swapped))
    plain, moved = (at.trace(model, ids).points[depth, -1] for ids in (IDS, swapped))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert float((plain - moved).abs().max()) > 1e-3
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())


@pytest.mark.parametrize("case", ["ViT", "DeiT", "DINOv2"])
def test_without_positions_a_picture_is_a_set_of_patches(case: str) -> None:
    model = random_model(case)
    pixels = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    swapped = torch.cat((pixels[..., 4:8], pixels[..., :4], pixels[..., 8:]), -1)  # columns of patches
    one, other = (at.trace(model, {"pixel_values": each}, without=["positions"]).points for each in (pixels, swapped))
    plain, moved = (at.trace(model, {"pixel_values": each}).points for each in (pixels, swapped))
    torch.testing.assert_close(one[:, -1], other[:, -1], rtol=1e-4, atol=1e-4)
    assert float((plain[:, -1] - moved[:, -1]).abs().max()) > 1e-3


@pytest.mark.parametrize(
    "case", ["Llama, grouped", "Qwen 3, q/k norm", "OLMo 2, norm over all heads", "T5", "DeepSeek V3"]
)
def test_heads_without_positions_are_those_of_the_ablated_model(case: str) -> None:
    """Entropy of the weights that the model itself returns while its positions are gone."""
    model: Any = random_model(case)
    found = at.trace(model, IDS, without=["positions"]).measurements
    assert found is not None
    model.set_attn_implementation("eager")
    part = model.encoder if case == "T5" else model
    with torch.no_grad(), remove_positions(model):
        weights = part(input_ids=torch.tensor([IDS]), output_attentions=True).attentions
    expected = torch.stack([torch.special.entr(each[0].double()).sum(-1).mean(-1) for each in weights])
    torch.testing.assert_close(found.heads["attention_entropy"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["Falcon RW, ALiBi", "BLOOM, 6 heads"])
def test_slopes_of_distance_cannot_be_taken_away(case: str) -> None:
    """Falcon has angles too, which it does not use here: zeroing them would be no ablation at all."""
    with pytest.raises(UnsupportedError, match="cannot be taken away by a hook"):
        at.trace(random_model(case), IDS, without=["positions"])


@pytest.mark.parametrize("case", ["Llama, grouped", "GPT-2", "BERT, MiniLM"])
def test_frozen_norms_alone_change_nothing(case: str) -> None:
    model = random_model(case)
    plain, frozen = at.trace(model, IDS).points, at.trace(model, IDS, without=["norms"]).points
    torch.testing.assert_close(frozen, plain, rtol=1e-5, atol=1e-5)
    both = [at.trace(model, IDS, without=parts).points for parts in (["feedforward"], ["feedforward", "norms"])]
    assert float((both[0] - both[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("case", ["OLMo", "Llama, grouped", "GPT-2", "T5", "Gemma, one key head"])
def test_a_frozen_norm_is_affine(case: str) -> None:
    """It divides by what it divided by in the plain run, whatever it is given."""
    model = random_model(case)
    norm = next(part for part in model.modules() if "Norm" in type(part).__name__)
    x, step = torch.randn(2, 1, len(IDS), 32, generator=torch.Generator().manual_seed(0))

    def frozen(given: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), freeze_norms(model, lambda: norm(x)):
            return norm(given)

    with torch.no_grad():
        torch.testing.assert_close(frozen(x), norm(x))
    torch.testing.assert_close(
        frozen(x + 2 * step) - frozen(x), 2 * (frozen(x + step) - frozen(x)), rtol=1e-4, atol=1e-4
    )


def test_norms_are_frozen_as_in_the_plain_run() -> None:
    """Beside another ablation too: GPT-2's first norm divides by lengths that its positions had a part in."""
    model: Any = random_model("GPT-2")
    model.set_attn_implementation("eager")
    words = model.wte.weight[IDS].detach()
    plain, norm = words + model.wpe.weight[: len(IDS)].detach(), model.h[0].ln_1
    length = (plain.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    read = norm.weight * (words - words.mean(-1, keepdim=True)) / length + norm.bias
    with torch.no_grad():
        mask = torch.full((len(IDS), len(IDS)), -1e30).triu(1)[None, None]
        expected = words + model.h[0].attn(read[None], attention_mask=mask)[0][0]
    run = at.trace(model, IDS, without=["positions", "norms", "feedforward"])
    torch.testing.assert_close(run.points[1], expected.double(), rtol=1e-4, atol=1e-4)


def test_the_model_is_left_as_it_was() -> None:
    model = random_model("Llama, grouped")
    before = hidden_states(model, IDS)
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    at.trace(model, IDS, without=["feedforward", "positions", "norms"])
    assert hooks == [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    torch.testing.assert_close(hidden_states(model, IDS), before, rtol=0, atol=0)


@pytest.mark.parametrize("case", ["Llama, grouped", "BERT, MiniLM", "BLOOM, 6 heads", "T5"])
def test_expansion_is_the_divergence_through_the_query(case: str) -> None:
    """e_l against the Jacobian of the velocity where only the query of token l moves."""
    layer = at.checkpoint(random_model(case)).layers[1]
    tokens = at.Tokens.gaussian(5, layer.dim, seed=4)
    found = query_expansion(layer.attention, tokens)  # type: ignore[arg-type]
    for head in range(layer.heads):
        law: Any = layer.head(head)
        for index in (1, 4):

            def velocity(moved: torch.Tensor, law: Any = law, index: int = index) -> torch.Tensor:
                def project(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                    changed = points.clone()
                    changed[index] = moved
                    return law._project(changed)[0], law._project(points)[1]

                return law._move(tokens, False, project)[index]

            jacobian = torch.autograd.functional.jacobian(velocity, tokens.points[index])
            assert float(found[head, index]) == pytest.approx(float(jacobian.trace()), rel=1e-9, abs=1e-12)


def test_heads_are_measured() -> None:
    model = random_model("Llama, grouped")
    layer, found = at.checkpoint(model).layers[0], at.trace(model, IDS).measurements
    assert found is not None
    tokens = at.Tokens(layer.norm(at.trace(model, IDS).points[0]))  # type: ignore[misc]
    torch.testing.assert_close(
        found.heads["attention_entropy"][0], at.attention_entropy(tokens, layer.attention), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        found.heads["self_weight"][0], at.self_weight(tokens, layer.attention), rtol=1e-5, atol=1e-5
    )
    normed = at.trace(random_model("Qwen 3, q/k norm"), IDS).measurements
    assert normed is not None
    assert bool(normed.heads["expansion"].isnan().all())  # no bilinear scores: undefined, not imitated


def test_many_texts_have_means_and_spreads() -> None:
    model, texts = random_model("GPT-2"), [IDS, IDS[::-1], IDS[:5]]
    found = trace_texts(model, texts, attention=False)
    each = torch.stack([at.trace(model, ids).measurements.curves["cosine"] for ids in texts])  # type: ignore[union-attr]
    mean, spread = found.curve("cosine")
    torch.testing.assert_close(mean, each.mean(0))
    torch.testing.assert_close(spread, each.std(0))
    assert found.lengths == (8, 8, 5)


def test_a_picture_is_traced() -> None:
    pixels = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    run = at.trace(random_model("ViT"), {"pixel_values": pixels})
    assert run.points.shape == (3, 10, 32)


def test_bad_texts() -> None:
    model = random_model("GPT-2")
    cases: list[tuple[Any, type[Exception], str]] = [
        ([1], InputError, "at least two tokens"),
        ([1, 64], InputError, "between 0 and 63"),
        ([1] * 1025, InputError, "1025 tokens and the model's context 1024"),
        ("", InputError, "empty"),
        ("a text", InputError, "no tokenizer"),
    ]
    for text, kind, message in cases:
        with pytest.raises(kind, match=message):
            at.trace(model, text)
    assert at.trace(model, [1] * 1025, max_tokens=6).n == 6
    with pytest.raises(InputError, match="'mlp' cannot be taken away; what can is feedforward"):
        at.trace(model, IDS, without=["mlp"])
    with pytest.raises(InputError, match="no stack 'decoder'"):
        at.trace(model, IDS, stack="decoder")


def test_a_folder_without_a_tokenizer(tmp_path: Any) -> None:
    model: Any = random_model("GPT-2")
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="no tokenizer"):
        at.trace(tmp_path, "some words")
    torch.testing.assert_close(at.trace(tmp_path, IDS).points, at.trace(model, IDS).points)


def test_frames_hold_the_measurements() -> None:
    model = random_model("GPT-2")
    run = at.trace(model, IDS)
    found: Any = run.measurements
    assert list(run.frame()["cosine"]) == found.curves["cosine"].tolist()
    assert list(run.frame()["attention"])[1:] == found.blocks["attention"].tolist()
    heads = run.frame("heads")
    assert list(heads["self_weight"]) == found.heads["self_weight"].flatten().tolist()
    # the row of block k holds the stream after the block whose heads have block k; the input comes before them
    blocks = sorted(set(heads["block"]))
    assert list(run.frame()["block"]) == [-1, *blocks]
    assert run.frame().set_index("block").loc[blocks[0], "displacement"] == float(found.blocks["displacement"][0])
    many = trace_texts(model, [IDS, IDS[:5]])
    assert list(many.frame()["cosine_spread"]) == many.curve("cosine")[1].tolist()
    assert list(many.frame("heads")["expansion"]) == many.head("expansion").flatten().tolist()


# ---------------------------------------------------------------- device, precision, a part of the layers


@pytest.mark.parametrize("case", ["Llama, grouped", "BERT, MiniLM", "Gemma 3, q/k norm, two rates", "T5", "GPT-2"])
def test_a_part_of_the_layers_is_the_beginning_of_the_trace(case: str, tmp_path: Path) -> None:
    """From files only the first blocks are loaded; a model in memory is stopped after them."""
    model: Any = random_model(case)
    model.save_pretrained(tmp_path / "model")
    whole = at.trace(tmp_path / "model", IDS)
    for source in (tmp_path / "model", model):
        run = at.trace(source, IDS, layers=1)
        torch.testing.assert_close(run.points, whole.points[:2], rtol=0, atol=0)
        assert run.measurements is not None
        assert whole.measurements is not None
        assert len(run.measurements.blocks["displacement"]) == 1
        for name in ("attention_entropy", "self_weight"):
            torch.testing.assert_close(run.measurements.heads[name], whole.measurements.heads[name][:1])
    assert "only the first 1 of" in at.trace(tmp_path / "model", IDS, layers=1).notes[0]
    for bad in (0, -1, 99):
        with pytest.raises(InputError, match="layers"):
            at.trace(tmp_path / "model", IDS, layers=bad)


def test_models_run_in_the_precision_of_their_files(tmp_path: Path) -> None:
    model: Any = random_model("Llama, grouped").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    own, single = at.trace(tmp_path / "model", IDS), at.trace(tmp_path / "model", IDS, dtype="float32")
    loaded = type(model).from_pretrained(tmp_path / "model", dtype=torch.bfloat16).eval()
    torch.testing.assert_close(own.points, at.trace(loaded, IDS).points, rtol=0, atol=0)
    assert bool((own.points.to(torch.bfloat16).double() == own.points).all())  # states are bfloat16 numbers
    assert not torch.equal(own.points, single.points)
    # a few units 2^-8 of the tokens, which the layers lengthen by a factor of ten
    error = (own.points - single.points).norm(dim=-1) / single.points.norm(dim=-1)
    assert float(error.max()) < 16 * 2.0**-8
    with pytest.raises(InputError, match=r"in memory is in torch\.bfloat16"):
        at.trace(model, IDS, dtype="float32")
    with pytest.raises(InputError, match="dtype must be float64, float32, bfloat16, float16, got 'int8'"):
        at.trace(tmp_path / "model", IDS, dtype="int8")


def test_devices_that_do_not_exist() -> None:
    model = random_model("GPT-2")
    with pytest.raises(InputError, match="the device 'tpu' is not known"):
        at.trace(model, IDS, device="tpu")
    if not torch.cuda.is_available():
        for function in (lambda: at.audit(model, device="cuda"), lambda: at.iterate(model, [IDS], device="cuda")):
            with pytest.raises(UnsupportedError, match="no GPU is found"):
                function()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "case", ["Llama, grouped", "BERT, MiniLM", "Gemma 2, capped scores", "T5", "GPT-2", "DeepSeek V3"]
)
def test_a_gpu_gives_the_numbers_of_the_cpu(case: str, tmp_path: Path) -> None:
    model: Any = random_model(case)
    model.save_pretrained(tmp_path / "model")
    one, other = (at.trace(tmp_path / "model", IDS, device=device, dtype="float64") for device in ("cpu", "cuda"))
    torch.testing.assert_close(one.points, other.points, rtol=1e-6, atol=1e-6)
    assert one.measurements is not None
    assert other.measurements is not None
    for name, values in one.measurements.heads.items():
        torch.testing.assert_close(values, other.measurements.heads[name], rtol=1e-6, atol=1e-6, equal_nan=True)
    for options in ({}, {"detail": "heads", "nulls": 0}):
        first, second = (at.audit(tmp_path / "model", device=device, **options) for device in ("cpu", "cuda"))
        assert [head.label.name for head in first.heads] == [head.label.name for head in second.heads]


def test_models_that_do_not_fit_are_rejected_before_they_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says which precision, and how many layers, would fit."""
    model: Any = random_model("Llama, grouped", num_hidden_layers=8)
    model.save_pretrained(tmp_path / "model")
    count = sum(part.numel() for part in model.parameters())
    monkeypatch.setattr("attractor.memory.available", lambda _device=None: 3 * count)
    with pytest.raises(MemoryShortageError, match=r"in bfloat16 it would fit and its first (\d+) layers") as found:
        at.trace(tmp_path / "model", IDS)
    layers = int(str(found.value).split("its first ")[1].split()[0])
    assert 1 <= layers < 8
    assert len(at.trace(tmp_path / "model", IDS, layers=layers).points) == layers + 1
    with pytest.raises(MemoryShortageError):
        at.trace(tmp_path / "model", IDS, layers=layers + 1)
    at.trace(tmp_path / "model", IDS, dtype="bfloat16")
    monkeypatch.setattr("attractor.memory.available", lambda _device=None: 100)
    with pytest.raises(MemoryShortageError, match="no precision and no number of layers"):
        at.trace(tmp_path / "model", IDS)
    with pytest.raises(MemoryShortageError, match="the audit of"):
        at.audit(tmp_path / "model")
