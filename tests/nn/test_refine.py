"""Refinements of models of transformers: the formula, zero strength, masks, caches, checkpointing, saving, removal."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attractor as at
from attractor.errors import InputError, StoreError, UnsupportedError

transformers = pytest.importorskip("transformers", reason="comes with attractor[checkpoints]")

VOCABULARY, DIM, HEADS, LAYERS = 50, 32, 4, 2
SIZES = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": 48}


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=DIM,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def llama(groups: int = 2, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, num_key_value_heads=HEADS // groups, initializer_range=0.3, **SIZES, **options
    )
    return transformers.LlamaForCausalLM(config).eval()


def bert(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=VOCABULARY, initializer_range=0.3, **SIZES, **options)
    return transformers.BertModel(config).eval()


FAMILIES = {"gpt2": gpt2, "llama": llama, "bert": bert}
EVERY = pytest.mark.parametrize("family", FAMILIES)
DECODERS = pytest.mark.parametrize("family", ["gpt2", "llama"])
CHANNELS = 3  # of the slices of 8 in the test of caches
KINDS = pytest.mark.parametrize("kind", ["shift", "slice"])


def refinements(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, at.nn.Refinement)]


def strengthened(model: Any, kind: Any, size: float = 0.5, **options: Any) -> Any:
    """Refined with strengths that differ from head to head and from channel to channel."""
    at.nn.refine(model, kind, sign="free", **options)
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for refinement in refinements(model):
            noise = torch.randn(refinement.theta.shape, generator=draw, dtype=torch.float64)
            refinement.theta.copy_(size * noise)
    return model


def words(batch: int = 2, n: int = 9) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(7))


@EVERY
@KINDS
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_zero_strength_is_the_model_bit_by_bit(family: str, kind: Any, implementation: str) -> None:
    model = FAMILIES[family](attn_implementation=implementation)
    before = model(words())[0]
    at.nn.refine(model, kind, sign="free")
    after = model(words())[0]
    assert torch.equal(after, before)
    # and yet the strengths learn from there
    after[..., 0].sum().backward()
    assert len(refinements(model)) == LAYERS
    assert all(float(refinement.theta.grad.abs().max()) > 0 for refinement in refinements(model))
    with torch.no_grad():
        assert torch.equal(model(words())[0], before)


@EVERY
@KINDS
def test_zero_strength_has_the_derivative_of_the_formula(family: str, kind: Any) -> None:
    """The same gradient as at strengths too small to matter, where the refined scores are really computed."""
    gradients = []
    for size in (0.0, 1e-14):
        model = strengthened(FAMILIES[family]().double(), kind, size)
        assert all(refinement.is_idle() is (size == 0.0) for refinement in refinements(model))
        model(words())[0][..., 0].sum().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters() if value.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-8, atol=1e-9)


def test_idle_notices_changes() -> None:
    model = gpt2()
    before = model(words())[0]
    at.nn.refine(model)
    refinement = refinements(model)[0]
    with torch.no_grad():
        for value in (0.0, 0.5, 0.0):
            refinement.theta.fill_(value)
            assert refinement.is_idle() is (value == 0.0)
            assert torch.equal(model(words())[0], before) is (value == 0.0)


def attention_of(model: Any) -> Any:
    paths = ("encoder.layer.0.attention.self", "transformer.h.0.attn", "model.layers.0.self_attn")
    return next(model.get_submodule(path) for path in paths if path.split(".")[0] in dict(model.named_children()))


@KINDS
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_formula_by_the_dynamics(family: str, kind: Any) -> None:
    """Absolute positions: the module's heads as a law whose interaction is W_h + lambda O_h V_h (or + Lambda_h), all (d, d)."""
    model = strengthened(FAMILIES[family]().double(), kind)
    module, size = attention_of(model), DIM // HEADS
    if family == "bert":
        q, k, v = (part.weight for part in (module.query, module.key, module.value))
        bias_q, bias_v = module.query.bias, module.value.bias
        output = model.encoder.layer[0].attention.output.dense.weight
    else:
        q, k, v = module.c_attn.weight.mT.split(DIM)
        bias_q, _, bias_v = module.c_attn.bias.split(DIM)
        output = module.c_proj.weight.mT
    q, k, v = (part.detach().view(HEADS, size, DIM) for part in (q, k, v))
    o = output.detach().view(DIM, HEADS, size).transpose(0, 1)
    strength = module.refinement.strength.detach()
    if kind == "shift":
        more = strength[:, None, None] * (o @ v)
    else:
        more = torch.diag_embed(torch.block_diag(*strength.split(1)).view(HEADS, DIM))
    interaction = q.mT @ k + more
    bias = (k.mT @ bias_q.detach().view(HEADS, size, 1)).squeeze(-1)
    law = at.Attention(
        interaction.mT,
        torch.eye(DIM, dtype=torch.float64).expand(HEADS, DIM, DIM),
        v,
        mask="causal" if family == "gpt2" else None,
        scale=1 / math.sqrt(size),
        output=o,
        query_bias=bias,
        value_bias=bias_v.detach().view(HEADS, size),
    )
    x = torch.randn(2, 7, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        moved = module(x)[0]
        moved = moved @ output.mT if family == "bert" else moved - module.c_proj.bias
        torch.testing.assert_close(moved, at.velocity(law, at.Tokens(x)), rtol=1e-11, atol=1e-11)


@KINDS
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_formula_with_rotary_positions(groups: int, kind: Any) -> None:
    """The term is added to scores that are turned already, and is not turned itself."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = strengthened(llama(groups).double(), kind)
    module, size, n = attention_of(model), DIM // HEADS, 7
    x = torch.randn(2, n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    cos, sin = model.model.rotary_emb(x, torch.arange(n)[None])
    q, k, v = (part(x).view(2, n, -1, size).transpose(1, 2) for part in (module.q_proj, module.k_proj, module.v_proj))
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    strength = module.refinement.strength
    if kind == "shift":
        seen = torch.einsum("bnd,dhr->bhnr", x, module.o_proj.weight.view(DIM, HEADS, size))
        more = strength[:, None, None] * (seen @ v.mT)
    else:
        sliced = x.view(2, n, HEADS, size).transpose(1, 2)
        more = (sliced * strength[:, None]) @ sliced.mT
    scores = (q @ k.mT + more) / math.sqrt(size)
    scores = scores.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf)
    wanted = module.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, n, DIM))
    found = module(x, position_embeddings=(cos, sin), attention_mask=None)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@DECODERS
@KINDS
def test_causal_and_padded(family: str, kind: Any) -> None:
    """A later token moves no earlier logits, and padding on the left moves none at all."""
    model, ids = strengthened(FAMILIES[family]().double(), kind), words()
    with torch.no_grad():
        logits = model(ids).logits
        changed = ids.clone()
        changed[:, -1] = 3
        torch.testing.assert_close(model(changed).logits[:, :-1], logits[:, :-1], rtol=1e-12, atol=1e-12)
        padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), ids), 1)
        mask = (padded > 0).long()
        places = (mask.cumsum(1) - 1).clamp_min(0)
        shown = model(padded, attention_mask=mask, position_ids=places).logits[:, 3:]
        torch.testing.assert_close(shown, logits, rtol=1e-9, atol=1e-9)


@KINDS
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padded_encoder(kind: Any, implementation: str) -> None:
    model, ids = strengthened(bert(attn_implementation=implementation).double(), kind), words()
    with torch.no_grad():
        hidden = model(ids)[0]
        padded = torch.cat((ids, torch.zeros(2, 3, dtype=torch.long)), 1)
        shown = model(padded, attention_mask=(padded > 0).long())[0][:, :-3]
        torch.testing.assert_close(shown, hidden, rtol=1e-9, atol=1e-9)


@DECODERS
@KINDS
def test_cache(family: str, kind: Any) -> None:
    """Token by token with a cache gives the logits of one pass; so does the rest of the text at once."""
    some = {"channels": CHANNELS} if kind == "slice" else {}
    model, ids = strengthened(FAMILIES[family]().double(), kind, **some), words()
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :4], use_cache=True)
        cache = first.past_key_values
        torch.testing.assert_close(first.logits, whole[:, :4], rtol=1e-10, atol=1e-10)
        for place in range(4, 7):
            step = model(ids[:, place : place + 1], past_key_values=cache, use_cache=True)
            torch.testing.assert_close(step.logits[:, 0], whole[:, place], rtol=1e-10, atol=1e-10)
        rest = model(ids[:, 7:], past_key_values=cache, use_cache=True)
        torch.testing.assert_close(rest.logits, whole[:, 7:], rtol=1e-10, atol=1e-10)


@DECODERS
@KINDS
def test_generation(family: str, kind: Any) -> None:
    model = strengthened(FAMILIES[family]().double(), kind)
    prompt = torch.cat((torch.zeros(1, 9, dtype=torch.long), words(1)))
    prompt[0, 4:] = words(1, 5)[0]
    options = {"attention_mask": (prompt > 0).long(), "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    slow = model.generate(prompt, use_cache=False, eos_token_id=None, **options)
    assert slow.shape == (2, 15)
    assert torch.equal(model.generate(prompt, eos_token_id=None, **options), slow)
    assert torch.equal(model.generate(prompt, eos_token_id=None, cache_implementation="static", **options), slow)
    beams = {"num_beams": 3, "eos_token_id": None, **options}
    assert torch.equal(model.generate(prompt, **beams), model.generate(prompt, use_cache=False, **beams))


@EVERY
@KINDS
def test_gradient_checkpointing(family: str, kind: Any) -> None:
    gradients = []
    for checkpointed in (False, True):
        model = strengthened(FAMILIES[family]().double(), kind).train()
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model(words(), use_cache=False)[0][..., 0].sum().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters() if value.grad is not None})
        assert all(
            module.__dict__["refined"].tokens is None for module in model.modules() if "refined" in module.__dict__
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-10, atol=1e-12)


@EVERY
@KINDS
def test_save_load_copy_and_remove(family: str, kind: Any, tmp_path: Path) -> None:
    model = FAMILIES[family]()
    plain, names = model(words())[0], set(model.state_dict())
    strengthened(model, kind)
    assert at.nn.is_refined(model)
    refined = model(words())[0]
    assert not torch.allclose(refined, plain)
    twin = copy.deepcopy(model)
    other = strengthened(FAMILIES[family](), kind, 0.1)
    other.load_state_dict(model.state_dict())
    model.save_pretrained(tmp_path)
    loaded = at.nn.load_refined(tmp_path, type(model)).eval()
    for found in (twin, other, loaded):
        assert torch.equal(found(words())[0], refined)
    at.nn.unrefine(model)
    assert torch.equal(model(words())[0], plain)
    assert set(model.state_dict()) == names
    assert (model.config._attn_implementation, hasattr(model.config, "attractor_refinement")) == ("sdpa", False)
    assert torch.equal(twin(words())[0], refined)


def test_load_without_the_head_or_into_it(tmp_path: Path) -> None:
    model = strengthened(llama(), "shift")
    hidden = model.model(words())[0]
    model.save_pretrained(tmp_path)
    assert torch.equal(at.nn.load_refined(tmp_path, transformers.AutoModel).eval()(words())[0], hidden)
    assert torch.equal(at.nn.load_refined(tmp_path).eval()(words())[0], model(words())[0])


def test_chosen_layers_and_signs() -> None:
    model = at.nn.refine(gpt2(), "slice", layers=[1], sign="-")
    (refinement,) = refinements(model)
    assert not hasattr(attention_of(model), "refinement")
    torch.testing.assert_close(refinement.strength, torch.full((HEADS, DIM // HEADS), -0.05))
    other = at.nn.refine(gpt2(), "slice", value=0.2)
    torch.testing.assert_close(refinements(other)[1].strength, torch.full((HEADS, DIM // HEADS), 0.2))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_training_step_moves_strengths(checkpointed: bool) -> None:
    """From zero, where the first step runs both paths, recomputed or not."""
    model = at.nn.refine(gpt2(), "shift").train()
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        model(words(), labels=words(), use_cache=False).loss.backward()
        optimiser.step()
    assert all(float(refinement.theta.detach().abs().min()) > 1e-3 for refinement in refinements(model))


def test_low_precision() -> None:
    model = strengthened(llama().bfloat16(), "shift")
    assert refinements(model)[0].theta.dtype == torch.bfloat16
    assert bool(model(words()).logits.isfinite().all())


def test_padded_values_change_nothing() -> None:
    found = [strengthened(llama().double(), "shift", pad=pad)(words())[0] for pad in (False, True)]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_refused(tmp_path: Path) -> None:
    model = gpt2()
    with pytest.raises(InputError, match="no refinement to take away"):
        at.nn.unrefine(model)
    with pytest.raises(InputError, match="'tilt' is not known"):
        at.nn.refine(model, "tilt")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="no explicit metric"):
        at.nn.refine(model, "metric")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="layers must be some of 0 to 1"):
        at.nn.refine(model, layers=[5])
    for wrong in ([], 1, [0.5], "01"):
        with pytest.raises(InputError, match=r"some of 0 to 1, such as \[0\], or left out for all; got "):
            at.nn.refine(model, layers=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a model of the transformers library, got Linear"):
        at.nn.refine(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match=r"'flex_attention': call model\.set_attn"):
        at.nn.refine(llama(attn_implementation="flex_attention"))
    with pytest.raises(InputError, match="1 to 8 of them to use, got 9"):
        at.nn.refine(model, "slice", channels=9)
    with pytest.raises(InputError, match="channels are a choice of the slice"):
        at.nn.refine(model, "shift", channels=3)
    assert not at.nn.is_refined(model)
    at.nn.refine(model)
    with pytest.raises(InputError, match="refined already"):
        at.nn.refine(model)
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedError, match="changed to 'eager' after refining"):
        model(words())
    with pytest.raises(StoreError, match=r"no config\.json"):
        at.nn.load_refined(tmp_path)
    at.nn.unrefine(model).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="was not refined when it was saved"):
        at.nn.load_refined(tmp_path)


def test_a_fused_optimiser_wakes_a_refinement() -> None:
    """Fused optimisers write parameters without telling their version."""
    model = at.nn.refine(gpt2(), "shift")
    refinement = refinements(model)[0]
    assert refinement.is_idle()
    refinement.theta.data.fill_(0.5)
    assert not refinement.is_idle()
