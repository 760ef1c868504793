"""Tokens through all blocks again and again: against loops written out by hand, and the laws of their consensus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import MODELS, random_model

import attractor as at
from attractor.errors import InputError, StoreError, UnsupportedError
from attractor.models import list_families
from attractor.models.decay import fit_decay
from attractor.models.random_init import initialize, make_config

IDS = [5, 9, 2, 33, 17, 8, 41, 3]
OTHER = ("vit", "deit", "dinov2", "dinov3_vit", "whisper", "clip", "clip_vision_model", "siglip", "gemma3n_text")
FIRST = {kind: name for name, (kind, _) in reversed(MODELS.items())}  # one case of each model type
TEXTUAL = [FIRST[family.model_types[0]] for family in list_families() if family.model_types[0] not in OTHER]


def official(x: torch.Tensor) -> float:
    """1 - mean_j |cos(x_1, x_j)|, as the script writes it."""
    return float(1 - torch.nn.functional.cosine_similarity(x[:1], x, dim=-1).abs().mean())


def by_hand(model: Any, ids: list[int], passes: int, norm: bool, feedforward: bool) -> list[list[torch.Tensor]]:
    """GPT-2's blocks called one after the other with a causal mask of our own; the stream after every block, pass by pass."""
    n, states = len(ids), []
    x = model.wte(torch.tensor([ids])) + model.wpe(torch.arange(n))
    mask = torch.full((n, n), -1e30, dtype=x.dtype).triu(1)[None, None]
    for _ in range(passes):
        through = []
        for block in model.h:
            x = x + block.attn(block.ln_1(x), attention_mask=mask)[0]
            x = x + block.mlp(block.ln_2(x)) if feedforward else x
            through.append(x[0])
        x = model.ln_f(x) if norm else x
        states.append([*through, x[0]])
    return states


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("feedforward", [True, False])
def test_gpt2_against_a_loop(norm: bool, feedforward: bool) -> None:
    model: Any = random_model("GPT-2").double()
    model.set_attn_implementation("eager")
    run = at.iterate(model, [IDS], passes=3, final_norm=norm, feedforward=feedforward)
    with torch.no_grad():
        states = by_hand(model, IDS, 3, norm, feedforward)
    torch.testing.assert_close(run.final[0], states[-1][-1], rtol=1e-10, atol=1e-10)
    assert run.curves["consensus_metric"][0, 1:] == pytest.approx([official(each[-1]) for each in states], abs=1e-12)
    layers = [official(x) for each in states for x in each[:-1]]
    assert run.by_layer.shape == (1, 2 * 3 + 1)
    assert run.by_layer[0, 1:] == pytest.approx(layers, abs=1e-12)
    with torch.no_grad():
        normed = [official(each[-1] if norm else model.ln_f(each[-1])) for each in states]
    assert run.normed[0, 1:] == pytest.approx(normed, abs=1e-12)


@pytest.mark.parametrize("case", TEXTUAL)
def test_one_pass_is_the_model(case: str) -> None:
    """Every family: the first pass is what the model itself returns, by its own code."""
    model: Any = random_model(case).double()
    stack = "encoder" if model.config.is_encoder_decoder else None
    run = at.iterate(model, [IDS], passes=1)
    with torch.no_grad():
        part = model.encoder if stack else model
        expected = part(input_ids=torch.tensor([IDS]))[0][0]
    torch.testing.assert_close(run.final[0], expected, rtol=1e-4, atol=1e-4)


def test_a_model_without_a_final_norm_is_said_to_have_none() -> None:
    known = {
        case: at.iterate(random_model(case).double(), [IDS], passes=1).norm_between
        for case in ("BERT, MiniLM", "GPT-2")
    }
    assert known == {"BERT, MiniLM": "the model has no final norm", "GPT-2": "final norm between passes"}


def test_several_streams_are_no_map_of_tokens() -> None:
    with pytest.raises(UnsupportedError, match="several residual streams"):
        at.iterate(random_model("Gemma 3n, shared keys and values").double(), [IDS], passes=1)


@pytest.mark.parametrize("case", ["GPT-2", "Llama, grouped", "GPT-Neo, global and local", "Falcon RW, ALiBi"])
def test_a_late_token_does_not_move_an_early_one(case: str) -> None:
    """The blocks of a decoder stay causal when they are called pass after pass."""
    model = random_model(case).double()
    one, other = (at.iterate(model, [ids], passes=2).final[0] for ids in (IDS, [*IDS[:-1], 60]))
    torch.testing.assert_close(one[:-1], other[:-1])
    assert float((one[-1] - other[-1]).abs().max()) > 1e-3


def test_pictures_are_iterated() -> None:
    run = at.iterate(random_model("ViT").double(), random_prompts=2, passes=2)
    assert run.lengths == (10, 10)
    assert run.metric.shape == (3,)


@pytest.mark.parametrize(
    ("kind", "init"), [("gpt2", "family"), ("llama", "plain"), ("gpt_neo", "plain"), ("bert", "plain")]
)
def test_random_configurations(kind: str, init: str) -> None:
    config = make_config(kind, 2, 24, 3)
    config.vocab_size = 50
    one, other = (initialize(config, 7, init) for _ in range(2))
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)  # the seed decides
    opened = at.checkpoint(one)
    assert (len(opened.layers), opened.dim, opened.layers[0].heads) == (2, 24, 3)
    matrices = [part for name, part in one.named_parameters() if part.ndim > 1 and "emb" not in name]
    if init == "plain":
        assert all(float(part.detach().std()) == pytest.approx(0.02, rel=0.2) for part in matrices)
    assert at.iterate(opened, random_prompts=1, prompt_tokens=6, passes=2).metric[-1] < 1


def test_draws_do_not_disturb_the_caller() -> None:
    config = make_config("gpt2", 1, 8, 2)
    config.vocab_size = 20
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    initialize(config, 1)
    assert torch.equal(torch.rand(4), expected)


def small_gpt2() -> Any:
    config = make_config("gpt2", 3, 48, 4)
    config.vocab_size = 100
    return initialize(config, 42, "plain")


def test_the_final_norm_decides_the_law() -> None:
    """Exponential with the norm between passes, a power without it, by the fit's own verdict."""
    model = small_gpt2()
    # three narrow blocks move tokens little: larger matrices make up for the nine that are missing
    with torch.no_grad():
        for block in model.h:
            block.attn.c_attn.weight.mul_(8)
            block.attn.c_proj.weight.mul_(8)
    between = at.iterate(model, random_prompts=2, prompt_tokens=12, passes=60, feedforward=False)
    without = at.iterate(model, random_prompts=2, prompt_tokens=12, passes=60, feedforward=False, final_norm=False)
    assert between.decay.name == "exponential"
    assert without.decay.name == "power"
    assert 0.5 < (without.decay.rate or 0) < 1.5
    assert between.metric[-1] < without.metric[-1]


def test_redrawn_weights() -> None:
    model = small_gpt2()
    once = at.iterate(model, [IDS], passes=3, random=True, seed=5)
    again = at.iterate(model, [IDS], passes=3, random=True, seed=5)
    redrawn = at.iterate(model, [IDS], passes=3, redraw=True, seed=5)
    assert np.array_equal(once.metric, again.metric)
    assert once.metric[0] == redrawn.metric[0]  # the words are embedded by the first draw
    assert once.metric[1] != redrawn.metric[1]
    fresh = initialize(model.config, 6, small_vocabulary=True)  # seed + 1: what the first pass draws
    x = initialize(model.config, 5).wte.weight[IDS] + initialize(model.config, 5).wpe.weight[: len(IDS)]
    with torch.no_grad():
        fresh.wpe.weight.zero_()
        expected = fresh(inputs_embeds=x[None]).last_hidden_state[0]
    run = at.iterate(model, [IDS], passes=1, redraw=True, seed=5)
    torch.testing.assert_close(run.final[0], expected)


def test_words_are_read() -> None:
    model = small_gpt2()
    run = at.iterate(model, [IDS], passes=40, decode=[0, 40], feedforward=False, init="plain")
    assert run.words[0] == (" ".join(map(str, IDS)),)  # an embedded word is nearest to itself here
    assert len(run.words[40][0].split()) == len(IDS)
    assert "embedding, transposed" in run.notes[-1]


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    model, store = small_gpt2(), tmp_path / "run.npz"
    whole = at.iterate(model, [IDS, IDS[::-1]], passes=6, redraw=True, decode=[2, 5])

    def stop(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.iterate(model, [IDS, IDS[::-1]], passes=6, redraw=True, decode=[2, 5], store=store, progress=stop)
    resumed = at.iterate(model, [IDS, IDS[::-1]], passes=6, redraw=True, decode=[2, 5], store=store, resume=True)
    for name, rows in whole.curves.items():
        assert np.array_equal(resumed.curves[name], rows)
    assert np.array_equal(resumed.by_layer, whole.by_layer)
    assert resumed.words == whole.words
    with pytest.raises(InputError, match="another run: its seed is 0, not 1;"):
        at.iterate(model, [IDS, IDS[::-1]], passes=6, redraw=True, seed=1, store=store, resume=True)
    with pytest.raises(InputError, match="has 6 passes already"):
        at.iterate(model, [IDS, IDS[::-1]], passes=4, redraw=True, store=store, resume=True)
    store.write_bytes(b"no arrays")
    with pytest.raises(StoreError, match="no stored iteration"):
        at.iterate(model, [IDS], passes=6, store=store, resume=True)


def test_interrupted_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    """The second of two prompts never gets through pass 3: the first must not be a pass ahead when the run goes on."""
    model, store = small_gpt2(), tmp_path / "run.npz"
    calls: list[int] = []
    whole = at.iterate(model, [IDS, IDS[::-1]], passes=5)

    def stop(_module: Any, _given: Any) -> None:
        calls.append(1)
        if len(calls) == 2 * 3:  # embedding ends before the last block
            raise KeyboardInterrupt

    hook = model.h[-1].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        at.iterate(model, [IDS, IDS[::-1]], passes=5, store=store)
    hook.remove()
    resumed = at.iterate(model, [IDS, IDS[::-1]], passes=5, store=store, resume=True)
    for name, rows in whole.curves.items():
        assert np.array_equal(resumed.curves[name], rows)
    assert np.array_equal(resumed.by_layer, whole.by_layer)
    assert np.array_equal(resumed.normed[:, 1:], whole.normed[:, 1:])


def test_only_the_same_run_is_resumed(tmp_path: Path) -> None:
    """Weights and tokens decide, whatever names say; words that the stored run passed by are not made up."""
    model, store = small_gpt2(), tmp_path / "run.npz"
    at.iterate(model, [IDS], passes=2, store=store, decode=[1])
    other = small_gpt2()
    with torch.no_grad():
        other.h[2].mlp.c_proj.weight[0, 0] += 1e-3
    for source, prompts, message in (
        (other, [IDS], "its model is 'GPT2Model' with other weights"),
        (model, [[*IDS[:-1], 4]], "its prompts are others"),
        (model, [IDS[:-1]], "its prompts have 8 tokens, not 7"),
    ):
        with pytest.raises(InputError, match=message):
            at.iterate(source, prompts, passes=4, store=store, resume=True)
    with pytest.raises(InputError, match=r"final_norm is True, not False"):
        at.iterate(model, [IDS], passes=4, final_norm=False, store=store, resume=True)
    words = at.iterate(model, [IDS], passes=4, decode=[0, 1, 2, 3]).words
    resumed = at.iterate(model, [IDS], passes=4, decode=[0, 2, 3], store=store, resume=True)
    assert resumed.words == words
    assert "embedding" in resumed.notes[-1]
    with pytest.raises(InputError, match="past pass 2 and did not read"):  # pass 4 is the state itself
        at.iterate(model, [IDS], passes=5, decode=[2, 4], store=_without_words(store), resume=True)


def _without_words(store: Path) -> Path:
    """The same stored run, one that read no words."""
    bare = store.with_name("bare.npz")
    with np.load(store) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["head"] = np.array(str(arrays["head"]).split('"texts"')[0] + '"texts": []}')
    np.savez(bare, **arrays)
    return bare


@pytest.mark.parametrize(
    ("curve", "name", "rate"),
    [
        (lambda k: 0.7 * np.exp(-0.2 * k), "exponential", 0.2),
        (lambda k: 0.7 * np.maximum(k, 1.0) ** -1.3, "power", 1.3),
        (lambda k: 0.4 + 0 * k, "none", None),
        (lambda k: np.where(k < 40, 0.5, 1e-3) * np.exp(-1e-2 * k), "neither", None),
        (lambda k: np.exp(-12.0 * k), "reached", None),
    ],
)
def test_laws_of_known_curves(curve: Any, name: str, rate: float | None) -> None:
    found = fit_decay(curve(np.arange(81.0)), floor=1e-20)
    assert found.name == name
    assert found.rate == (None if rate is None else pytest.approx(rate, rel=1e-6))


def test_the_criterion_is_akaikes() -> None:
    """n log(RSS/n) + 2 (2 + 1), and halves that agree where the law is right and not where it is wrong."""
    k = np.arange(101.0)
    noise = 0.05 * np.random.default_rng(0).standard_normal(101)
    found = fit_decay(np.exp(noise) * np.maximum(k, 1.0) ** -0.9)
    fit = found.fits["power"]
    place = np.log(k[10:])
    line = np.polynomial.Polynomial.fit(place, noise[10:] - 0.9 * place, 1)
    residuals = noise[10:] - 0.9 * place - line(place)
    assert found.window == (10, 100)
    assert fit.criterion == pytest.approx(91 * np.log((residuals**2).mean()) + 6)
    assert fit.residual == pytest.approx(np.sqrt((residuals**2).mean()))
    assert fit.halves[0] == pytest.approx(fit.halves[1], rel=0.2)
    wrong = found.fits["exponential"].halves
    assert wrong[0] > 2 * wrong[1]


def test_bad_iterations() -> None:
    model = random_model("GPT-2")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"prompts": []}, InputError, "nothing to iterate"),
        ({"prompts": [IDS], "passes": 0}, InputError, "at least 1"),
        ({"prompts": [IDS]}, InputError, r"in memory is in torch\.float32"),
        ({"prompts": ["words"]}, InputError, "no tokenizer"),
        ({"prompts": [[1]]}, InputError, "at least two tokens"),
        ({"prompts": [IDS], "decode": [9], "passes": 3}, InputError, "lie between 0 and 3"),
        ({"prompts": [], "random_prompts": 1, "prompt_tokens": 5000}, InputError, "between 2 and the model's context"),
        ({"prompts": [IDS], "resume": True, "dtype": torch.float32}, InputError, "no stored run"),
        ({"prompts": [IDS], "random": True, "init": "kaiming"}, InputError, "'family' or 'plain'"),
    ]
    for options, kind, message in cases:
        with pytest.raises(kind, match=message):
            at.iterate(model, **options)
    with pytest.raises(UnsupportedError, match=r"'gpt9'.*families"):
        make_config("gpt9", 2, 8, 2)
    with pytest.raises(InputError, match="do not split into 3 heads"):
        make_config("gpt2", 2, 8, 3)
    with pytest.raises(UnsupportedError, match="build it with transformers"):
        make_config("whisper", 2, 8, 2)


def test_a_frame_has_a_line_for_each_prompt_and_pass() -> None:
    found = at.iterate(random_model("GPT-2").double(), [IDS], random_prompts=1, prompt_tokens=5, passes=2)
    frame = found.frame()
    assert list(frame["pass"]) == [0, 1, 2, 0, 1, 2]
    assert list(frame["consensus_metric"]) == found.curves["consensus_metric"].flatten().tolist()
