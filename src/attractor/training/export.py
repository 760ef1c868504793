"""Runs as models of ``transformers``."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attractor.errors import AttractorError, StoreError, UnsupportedError, missing
from attractor.files import write_json
from attractor.models import silence_transformers
from attractor.nn import AttentionLayer, Slice, TransformerBlock, Weights, load_refined, refine
from attractor.training.loading import TrainedRun, load
from attractor.training.models import LanguageModel, VisionModel

ACCURACY = 1e-4  # largest difference of logits, relative to the largest one, of a model that is written
SAMPLES = 16  # tokens on which they are compared


@dataclass(frozen=True)
class Exported:
    """A model of ``transformers`` that was written.

    Attributes
    ----------
    folder : where it is.
    model_type : its architecture.
    refinement : "none", "folded" into query and key weights, or a "module" that ``at.nn.load_refined`` opens.
    error : largest difference of its logits from those of the run on random inputs, relative to the largest.
    notes : remarks, such as a tokenizer that is missing.
    """

    folder: Path
    model_type: str
    refinement: str
    error: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Head:
    """Weights of a layer with the factor of its scores, and its refinement unless that is contained in them."""

    weights: Weights
    scale: float
    refinement: Any = None
    metric: Tensor | None = None


def to_transformers(
    source: str | Path | TrainedRun, out: str | Path, *, step: int | None = None, fold: bool | None = None
) -> Exported:
    """Write the model of a run as a model of ``transformers``, which other programs open without attractor.

    Language models with rotary positions become Nemotron models, others GPT-2 models, and image models ViT models; layers of looped models
    are repeated. The written model is opened again and compared with the run before it gets its name.

    Parameters
    ----------
    source : the folder of a run, or what ``load`` returned.
    out : a new folder.
    step : step of the weights, as for ``load``.
    fold : put a refinement into the query and key weights of wider heads. That is exact in architectures whose heads may have any
        dimension (Nemotron, ViT), and done there by default. Otherwise (GPT-2, for learned positions) it is kept as a module of ``refine``,
        and the folder is opened by ``at.nn.load_refined``. True raises where it is not exact, False keeps the module.
    """
    run = source if isinstance(source, TrainedRun) else load(source, step)
    folder = Path(out)
    if folder.exists():
        raise StoreError(f"{folder} exists already: give a new folder")
    _check(run)
    try:
        import transformers
    except ImportError:
        raise missing("transformers", "checkpoints") from None
    refined = run.config.refinement != "none"
    wide = (
        isinstance(run.model, VisionModel)
        or run.config.positions == "rotary"
        or (refined and run.config.positions == "none")
    )
    if fold and refined and not wide:
        raise UnsupportedError(
            f"the {run.config.refinement} of a model with {run.config.positions} positions cannot be folded exactly: it needs wider heads, "
            "and GPT-2 has none; leave fold out to keep it as a module"
        )
    folded = refined and wide and fold is not False
    blocks = [block for _ in range(getattr(run.model.backbone, "loops", 1)) for block in run.model.backbone.blocks]
    heads = [_read_head(block.attention, folded) for block in blocks]  # type: ignore[union-attr, arg-type]
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with torch.no_grad(), silence_transformers():
            if isinstance(run.model, VisionModel):
                model, kind = _make_vit(run, run.model, blocks, heads), transformers.ViTForImageClassification
            elif wide:
                model, kind = _make_nemotron(run, run.model, blocks, heads), transformers.AutoModelForCausalLM
            else:
                model, kind = _make_gpt2(run, run.model, blocks, heads), transformers.AutoModelForCausalLM
            if refined and not folded:
                _add_module(model, heads)
            model.eval().save_pretrained(fresh)
            notes = _write_reader(run, fresh)
            again: Any = load_refined(fresh, kind) if refined and not folded else kind.from_pretrained(fresh)
            error = _compare(run, again.eval())
        if not error < ACCURACY:
            raise AttractorError(
                f"the {model.config.model_type} model made from {run.folder} has other logits, by {error:.2g} of the largest: nothing was "
                "written; report this"
            )
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    state = "none" if not refined else "folded" if folded else "module"
    return Exported(folder, model.config.model_type, state, error, notes)


def _check(run: TrainedRun) -> None:
    """Raise for models that no architecture of transformers has."""
    config = run.config
    lost = [
        (config.kernel != "softmax", f"{config.kernel} attention"),
        (config.placement != "pre", f"norms placed as {config.placement!r}"),
        (config.norm != "layer", "RMS norms with biases in the feed-forward part"),
        (bool(config.cutoffs), "an adaptive softmax"),
        (config.hidden == 0, "blocks without a feed-forward part"),
        (bool(getattr(config, "inject", False)), "tokens that are added again in every loop"),
        (config.task == "images" and config.pooling != "class", f"pooling {config.pooling!r}"),
        (config.task == "images" and config.positions == "rotary", "rotary positions of patches"),
    ]
    reasons = [reason for applies, reason in lost if applies]
    if reasons:
        raise UnsupportedError(
            f"transformers has no architecture for the run in {run.folder}, which has {' and '.join(reasons)}; at.training.load opens it"
        )


def _read_head(layer: AttentionLayer, folded: bool) -> _Head:
    """The weights of a layer in float64."""
    with torch.no_grad():
        own = layer.weights(torch.float64).detach()
        metric = layer.metric_diagonal(torch.float64)
        if not folded:
            return _Head(own, layer.scale_value(), layer.refinement, metric)
        merged, _ = layer.export(torch.float64)
        return _Head(merged, layer.scale_value())


def _resize(head: _Head, size: int, first: int = 0) -> tuple[Tensor, ...]:
    """Query, key, value (h size, d), output (d, h size) and their biases for heads of dimension ``size``, with zeros for what is missing.

    Queries contain the factor of scores, relative to the 1 / sqrt(size) of transformers. ``first`` zeros stand before queries and keys.
    """
    weights, heads = head.weights, head.weights.heads
    factor = head.scale * size**0.5

    def rows(matrix: Tensor, before: int = 0) -> Tensor:
        shape = (heads, size, *matrix.shape[2:])
        made = matrix.new_zeros(shape)
        made[:, before : before + matrix.shape[1]] = matrix
        return made.flatten(0, 1)

    zeros = weights.query.new_zeros(heads, 1)
    biases = [zeros if one is None else one for one in (weights.query_bias, weights.key_bias, weights.value_bias)]
    output = rows(weights.output.mT).T
    last = weights.output.new_zeros(weights.output.shape[1]) if weights.output_bias is None else weights.output_bias
    parts = factor * rows(weights.query, first), rows(weights.key, first), rows(weights.value), output
    return (*parts, factor * rows(biases[0], first), rows(biases[1], first), rows(biases[2]), last)


def _check_heads(head: _Head, size: int, kind: str) -> None:
    weights = head.weights
    if weights.query.shape[1] != size or weights.value.shape[1] != size:
        raise UnsupportedError(
            f"the heads of this run have dimensions {weights.query.shape[1]} and {weights.value.shape[1]}, and those of {kind} have {size}"
        )


def _set(module: Any, weight: Tensor, bias: Tensor | None = None) -> None:
    """Copy weights into a module."""
    module.weight.copy_(weight)
    if bias is not None:
        module.bias.copy_(bias)


def _make_gpt2(run: TrainedRun, model: LanguageModel, blocks: list[Any], heads: list[_Head]) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config, block = run.config, blocks[0]
    for head in heads:
        _check_heads(head, config.dim // config.heads, "GPT-2")
    made: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.embedding.num_embeddings,
            n_positions=config.context,
            n_embd=config.dim,
            n_layer=len(blocks),
            n_head=config.heads,
            n_inner=block.widen.out_features,
            activation_function=block.activation,
            layer_norm_epsilon=block.norms[0].eps,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    core, backbone = made.transformer, model.backbone
    _set(core.wte, model.embedding.weight)
    places = backbone.waves if backbone.places is None else backbone.places
    _set(core.wpe, torch.zeros_like(core.wpe.weight) if places is None else places)  # type: ignore[arg-type]
    _set(core.ln_f, backbone.norm.weight, backbone.norm.bias)  # type: ignore[arg-type]
    for layer, one, head in zip(core.h, blocks, heads, strict=True):
        query, key, value, output, *biases = _resize(head, config.dim // config.heads)
        _set(layer.attn.c_attn, torch.cat((query, key, value)).T, torch.cat(biases[:3]))
        _set(layer.attn.c_proj, output.T, biases[3])
        _copy_block(one, (layer.ln_1, layer.ln_2))
        _set(layer.mlp.c_fc, one.widen.weight.T, one.widen.bias)
        _set(layer.mlp.c_proj, one.narrow.weight.T, one.narrow.bias)
    return made


def _make_nemotron(run: TrainedRun, model: LanguageModel, blocks: list[Any], heads: list[_Head]) -> Any:
    from transformers import NemotronConfig, NemotronForCausalLM

    config, block, rotary = run.config, blocks[0], blocks[0].attention.positions
    # the architecture turns at least one pair, here of zeros
    turned, first = (2, 2) if rotary is None else (rotary.dim or block.attention.head_dim, 0)
    size = max(max(head.weights.query.shape[1] + first, head.weights.value.shape[1]) for head in heads)
    made: Any = NemotronForCausalLM(
        NemotronConfig(
            vocab_size=model.embedding.num_embeddings,
            hidden_size=config.dim,
            intermediate_size=block.widen.out_features,
            num_hidden_layers=len(blocks),
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            head_dim=size,
            hidden_act=block.activation,
            max_position_embeddings=config.context,
            norm_eps=block.norms[0].eps,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4 if rotary is None else rotary.theta,
                "partial_rotary_factor": turned / size,
            },
            attention_bias=True,
            mlp_bias=True,
            attention_dropout=config.dropout,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    if int(size * (turned / size)) != turned:
        made.config.rope_parameters["partial_rotary_factor"] = (turned + 0.5) / size
        made = type(made)(made.config)
    core = made.model
    _set(core.embed_tokens, model.embedding.weight)
    _set(core.norm, model.backbone.norm.weight - 1, model.backbone.norm.bias)  # type: ignore[operator, arg-type]
    # pairs (0, 1), (2, 3), ... become (0, half), (1, half + 1), ...
    order = torch.cat((torch.arange(0, turned, 2), torch.arange(1, turned, 2), torch.arange(turned, size)))
    for layer, one, head in zip(core.layers, blocks, heads, strict=True):
        query, key, value, output, *biases = _resize(head, size, first)
        rows = [part.unflatten(0, (config.heads, size))[:, order].flatten(0, 1) for part in (query, key, *biases[:2])]
        own = layer.self_attn
        _set(own.q_proj, rows[0], rows[2])
        _set(own.k_proj, rows[1], rows[3])
        _set(own.v_proj, value, biases[2])
        _set(own.o_proj, output, biases[3])
        _copy_block(one, (layer.input_layernorm, layer.post_attention_layernorm), 1.0)
        _set(layer.mlp.up_proj, one.widen.weight, one.widen.bias)
        _set(layer.mlp.down_proj, one.narrow.weight, one.narrow.bias)
    return made


def _make_vit(run: TrainedRun, model: VisionModel, blocks: list[Any], heads: list[_Head]) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config, block = run.config, blocks[0]
    height, width, channels = run.inputs.shape
    size = max(max(head.weights.query.shape[1], head.weights.value.shape[1]) for head in heads)
    settings = ViTConfig(
        hidden_size=config.dim,
        num_hidden_layers=len(blocks),
        num_attention_heads=config.heads,
        intermediate_size=block.widen.out_features,
        hidden_act=block.activation,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        layer_norm_eps=block.norms[0].eps,
        image_size=height if height == width else (height, width),
        patch_size=config.patch,
        num_channels=channels,
        id2label={index: str(index) for index in range(run.inputs.classes)},
        label2id={str(index): index for index in range(run.inputs.classes)},
        qkv_bias=True,
    )
    if size != config.dim // config.heads:
        settings.head_dim = size
    made: Any = ViTForImageClassification(settings)
    core, parts = made.vit, made.vit.embeddings
    patches = model.embedding.weight.view(config.dim, config.patch, config.patch, channels).permute(0, 3, 1, 2)
    _set(parts.patch_embeddings.projection, patches, model.embedding.bias)
    assert model.start is not None
    parts.cls_token.copy_(model.start.view(1, 1, -1))
    places = model.backbone.waves if model.backbone.places is None else model.backbone.places
    parts.position_embeddings.copy_(torch.zeros_like(parts.position_embeddings) if places is None else places[None])  # type: ignore[index]
    _set(core.layernorm, model.backbone.norm.weight, model.backbone.norm.bias)  # type: ignore[arg-type]
    _set(made.classifier, model.classifier.weight, model.classifier.bias)
    for layer, one, head in zip(core.layers, blocks, heads, strict=True):
        query, key, value, output, *biases = _resize(head, size)
        own = layer.attention
        for name, weight, bias in zip("qkv", (query, key, value), biases[:3], strict=True):
            _set(getattr(own, f"{name}_proj"), weight, bias)
        _set(own.o_proj, output, biases[3])
        _copy_block(one, (layer.layernorm_before, layer.layernorm_after))
        _set(layer.mlp.fc1, one.widen.weight, one.widen.bias)
        _set(layer.mlp.fc2, one.narrow.weight, one.narrow.bias)
    return made


def _copy_block(block: TransformerBlock, norms: tuple[nn.Module, nn.Module], unit: float = 0.0) -> None:
    """Copy the norms of a block; ``unit`` is what the architecture adds to gains."""
    for own, other in zip(block.norms, norms, strict=True):
        _set(other, own.weight - unit, own.bias)  # type: ignore[operator, arg-type]


def _add_module(model: Any, heads: list[_Head]) -> None:
    """Refine a model with the strengths of the run, as free numbers; the factor of scores is contained in them."""
    kinds = {isinstance(head.refinement, Slice) for head in heads}
    first = heads[0].refinement
    channels = first.channels if isinstance(first, Slice) else None
    refine(model, "slice" if kinds == {True} else "shift", sign="free", channels=channels)
    modules = [part for part in model.modules() if "refined" in vars(part)]
    for module, head in zip(modules, heads, strict=True):
        refinement = head.refinement.double()
        size = module.refined.head_dim
        strength = refinement.diagonal(head.metric) if isinstance(refinement, Slice) else refinement.strength
        module.refinement.theta.copy_(head.scale * size**0.5 * strength)


def _write_reader(run: TrainedRun, folder: Path) -> tuple[str, ...]:
    """Write the tokenizer, or how images are read."""
    if run.tokenizer is None:
        mean, spread = (list(getattr(run.inputs, name)) for name in ("mean", "deviation"))
        height, width, _ = run.inputs.shape
        write_json(
            folder / "preprocessor_config.json",
            {
                "image_processor_type": "ViTImageProcessor",
                "do_resize": True,
                "size": {"height": height, "width": width},
                "do_rescale": True,
                "rescale_factor": 1 / 255,
                "do_normalize": True,
                "image_mean": mean,
                "image_std": spread,
            },
            indent=1,
        )
        return ()
    if run.config.tokens == "words":
        return (
            "there is no tokenizer of transformers for words with an end of line; at.training.load has the tokenizer",
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if run.tokenizer.file is not None:
        pieces = Tokenizer.from_file(str(run.tokenizer.file))
    else:
        printed = [
            *range(33, 127),
            *range(161, 173),
            *range(174, 256),
        ]  # bytes that stand for themselves in byte-level BPE
        others = [byte for byte in range(256) if byte not in printed]
        letters = {byte: chr(byte) for byte in printed} | {byte: chr(256 + place) for place, byte in enumerate(others)}
        pieces = Tokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
        pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
        pieces.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=pieces).save_pretrained(folder)
    return ()


def _compare(run: TrainedRun, model: Any) -> float:
    """The largest difference of logits on random inputs, relative to the largest logit."""
    draw = torch.Generator().manual_seed(0)
    if isinstance(run.model, VisionModel):
        images = torch.randint(0, 256, (2, *run.inputs.shape), generator=draw, dtype=torch.uint8)
        own = run.model.logits(images)
        pixels = (images.float() / 255 - run.model.mean) / run.model.deviation
        other = model(pixel_values=pixels.permute(0, 3, 1, 2)).logits
    else:
        count = min(run.config.context, SAMPLES)
        ids = torch.randint(0, run.model.embedding.num_embeddings, (2, count), generator=draw)
        own, other = run.model.logits(ids), model(input_ids=ids).logits
    return float((own - other).abs().max() / own.abs().max())
