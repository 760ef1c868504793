"""``audit``: spectra and regimes of every head of a model, from its weights alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from attractor import memory
from attractor.errors import CheckpointError, InputError, MemoryShortageError
from attractor.laws import Attention, has_kernel, rotary_of
from attractor.memory import find_device
from attractor.models.attention_layers import Heads, Layer
from attractor.models.audit_findings import find_audit_findings, measure_similarities
from attractor.models.audit_results import (
    Audit,
    AuditCard,
    AuditHead,
    AuditLayer,
    AuditSettings,
    Quantities,
    UndefinedLayer,
    VerifiedLayers,
)
from attractor.models.checkpoints import Checkpoint
from attractor.models.loading import find_dtype, read_text_config
from attractor.models.opening import checkpoint as open_checkpoint
from attractor.models.quantisation import Quantised, error_bars, perturb
from attractor.models.wide_layers import WorkspacePool, head_groups, is_wide, load_group
from attractor.weights import (
    BANDS,
    NAMES,
    GrowthAccumulator,
    Half,
    LabelContext,
    LayerRegime,
    Setting,
    SmallMatrices,
    classify_factors,
    classify_heads,
    classify_values,
    collect_other_heads,
    compare_with_nulls,
    compute_nulls,
    compute_quantities,
    draw_random_heads,
    factorize,
    label_random_heads,
    label_random_layers,
    reduce_products,
    separate_heads,
    share_label,
    value_spectrum,
)

WIDE = 1024  # above this width a plain audit leaves out what costs more than reading the weights
CHUNK = 64 * 2**20  # bytes of the factors of heads that are processed together, where a whole layer is not needed
SQUARES = 12  # (d, d) matrices in float64 that sums over the heads of a layer need together
WORKERS = 8  # layers of a narrow model that are in memory together
Detail = Literal["auto", "full", "heads"]
T = TypeVar("T")


class HeadShape(NamedTuple):
    """What random heads must share with a head to be comparable: its sizes, and the Frobenius norms of its W and its value."""

    dim: int
    sizes: tuple[int, int]
    interaction: float
    value: float


class HeadBatch(NamedTuple):
    """Results of some heads of a layer; ``regime`` is that of their sum, if it was computed, ``context`` what decides labels."""

    heads: list[AuditHead]
    shapes: list[HeadShape]
    regime: LayerRegime | None = None
    context: LabelContext | None = None


def audit(
    source: Any,
    *,
    fold: bool | None = None,
    detail: Detail = "auto",
    sums: bool | None = None,
    nulls: int = 64,
    layers: Sequence[int] | None = None,
    device: Any = None,
    dtype: Any = None,
    verify: bool | None = None,
    unverified: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Classify every head of a model by its weights, with one layer in memory at a time.

    For a head with interaction :math:`W = s\\,Q^\\top K` and value :math:`V` the audit computes the spectra of the symmetric parts
    of :math:`W` and :math:`V^\\top W`, in all d dimensions and on the range of the output projection, and the eigenvalues of
    :math:`V` there; see ``attractor.weights.QUANTITIES``. No text is read.

    Parameters
    ----------
    source : a ``Checkpoint``, or any argument of ``checkpoint``.
    fold : fold the gain, bias and centring of the norm before attention into the weights. The default is True where attention
        reads a normalised copy of the residual stream (pre-norm) and False in post-norm models, where attention adds to the
        tokens that it reads.
    detail : "heads" computes heads only; "full" adds mismatched heads, quantities with the other choice of ``fold``, rotary
        offsets, error bars of quantised weights, and sums over the heads of a layer, for which (d, d) matrices are formed;
        "auto" is "full" up to width 1024.
    sums : compute the sums over heads, whatever ``detail`` is.
    nulls : number of random heads that each head is compared with; 0 for no null models.
    layers : indices of the layers to audit; all by default.
    device : where layers are computed, such as "cuda"; the CPU by default.
    dtype : precision, "float64" or "float32"; by default float64, and float32 for 16-bit weights where ``detail`` is not full.
    verify : compare our attention with the original model on three layers first; by default up to width 1024.
    unverified : go on if that comparison fails, which otherwise raises a ``CheckpointError``.
    seed : seed of random heads and of perturbed weights.
    progress : called with the number of layers that are done.

    Returns
    -------
    Audit : ``heads`` and ``layers``. Heads whose scores are not bilinear in the tokens have the quantities of their values only;
        ``undefined`` lists the layers without any, each with the reason.
    """
    start, found = time.perf_counter(), source if isinstance(source, Checkpoint) else open_checkpoint(source)
    if detail not in ("auto", "full", "heads"):
        raise InputError(f"detail must be 'auto', 'full' or 'heads', got {detail!r}")
    if nulls and nulls < 3:
        raise InputError(f"nulls must be 0 or at least 3 random heads, got {nulls}")
    full = found.dim <= WIDE if detail == "auto" else detail == "full"
    found = replace(found, device=find_device(device))
    if dtype is not None:
        if find_dtype(dtype) not in BANDS:
            raise InputError(f"an audit computes in float64 or float32, not in {dtype}")
        found = replace(found, dtype=find_dtype(dtype))
    folded = found.first.reads_copy if fold is None else fold
    summed = full if sums is None else sums
    settings = AuditSettings(folded, summed, folded or fold is None, nulls, 8 if nulls else 0, seed=seed)
    if not full:
        settings = replace(settings, both=False, shifts=0, offsets=(), copies=0)
    chosen = choose_layers(found, layers)
    check_audit_memory(found, full, summed)
    checked = found.dim <= WIDE if verify is None else verify
    verified = _verify(found, list(chosen), unverified) if checked else None
    heads: list[AuditHead] = []
    rows: list[AuditLayer] = []
    undefined: list[UndefinedLayer] = []
    notes = list(found.notes)
    workspaces = WorkspacePool()
    quantised = isinstance(found.tensors, Quantised) and full
    if isinstance(found.tensors, Quantised) and found.tensors.without_grid():
        quantised = False
        notes.append(f"there are no error bars: the grid of {', '.join(found.tensors.without_grid())} is not known")

    def audit_one(index: int, layer: Layer) -> tuple[list[AuditHead], AuditLayer] | UndefinedLayer:
        layer = layer if full or dtype is not None else layer.in_stored_precision()
        reason = explain_undefined(layer)
        if reason is not None:
            return UndefinedLayer(index, layer.name, reason)
        own, row = audit_layer(layer, index, settings, workspaces)
        own = add_error_bars(own, found, index, settings) if quantised else own
        notes.extend(note for note in layer.notes if note not in notes)
        return own, row

    for count, result in enumerate(map_layers(found, chosen, audit_one)):
        if isinstance(result, UndefinedLayer):
            undefined.append(result)
        else:
            heads += result[0]
            rows.append(result[1])
        if progress is not None:
            progress(count + 1)
    card = _card(found, verified, settings)
    if not full:
        notes.append(
            f"mismatched heads, rotary offsets, numbers without the norm{'' if summed else ', sums of layers'} "
            "and error bars were left out (detail is not full)",
        )
    results = tuple(heads), tuple(rows), tuple(undefined)
    findings = find_audit_findings(heads, settings)
    spent = time.perf_counter() - start
    return Audit(found.name, found.family.name, folded, *results, tuple(notes), spent, card, findings)


def check_audit_memory(found: Checkpoint, full: bool, summed: bool) -> None:
    """Raise before weights are read if the layers that are in memory together do not fit; ``full`` and ``summed`` are those of
    ``audit``. The estimate is that of the first layer's rows, in the precision of the audit, and of (d, d) matrices of sums."""
    free = memory.available(found.device)
    config = found.config
    heads, k = count_heads(config)
    if free is None or not heads:
        return
    rows, square = 4 * found.dim * heads * k, found.dim**2
    stored = getattr(getattr(config, "dtype", None), "itemsize", 4)
    together = min(WORKERS, len(found.layers)) if found.dim <= WIDE else 1
    needed = together * (rows * (2 * stored + (4 * 8 if full else 8)) + (SQUARES * 8 * square if summed else 0))
    if needed > free:
        advice = "; detail='heads' without sums needs less" if full or summed else ""
        raise MemoryShortageError(
            f"the audit of {found.name} needs about {memory.format_size(needed)} for layers of {heads} heads and width {found.dim}, "
            f"and {memory.format_size(free)} are free on {found.device.type}{advice}"
        )


def count_heads(config: Any) -> tuple[int, int]:
    """The number of heads and their dimension; zeros if a configuration has other names for them."""
    text = read_text_config(config)
    names = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
    find = lambda given: next((one for name in given if isinstance(one := getattr(text, name, None), int)), 0)  # noqa: E731
    heads, width = find(names), find(("hidden_size", "n_embd", "d_model", "dim"))
    own = getattr(text, "head_dim", None)
    return heads, own if isinstance(own, int) else width // max(heads, 1)


def choose_layers(found: Checkpoint, layers: Any) -> Sequence[int]:
    """The indices of the layers to audit; raises if one does not exist."""
    if layers is None:
        return range(len(found.layers))
    chosen = list(layers) if isinstance(layers, (Sequence, range)) and not isinstance(layers, str) else None
    if not chosen or any(not isinstance(index, int) or isinstance(index, bool) for index in chosen):
        raise InputError(f"layers must be a list of layer numbers, such as [0, 3], got {layers!r}")
    bad = next((index for index in chosen if not 0 <= index < len(found.layers)), None)
    if bad is not None:
        raise InputError(f"{found.name} has layers 0 to {len(found.layers) - 1}, not {bad}")
    return chosen


def map_layers(found: Checkpoint, chosen: Sequence[int], function: Callable[[int, Layer], T]) -> Iterator[T]:
    """Apply a function to each layer: several layers of a narrow model at once, those of a wide model one after the other.

    Small eigenproblems gain nothing from several threads and on a busy machine lose most of their time in synchronisation, so each
    layer of a narrow model is computed by one thread.
    """
    threads = torch.get_num_threads()
    try:
        if found.dim > WIDE:
            for result in map(function, chosen, found.layers.prefetch(chosen)):
                memory.trim()  # the allocator would otherwise keep the memory of every layer
                yield result
            return
        torch.set_num_threads(1)
        assert found.reader  # created once, before several threads use it
        pool = ThreadPoolExecutor(min(threads, WORKERS), "attractor-layers", torch.set_num_threads, (1,))
        try:
            yield from pool.map(lambda index: function(index, found.layers[index]), chosen)
        finally:
            pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(threads)


def _card(found: Checkpoint, verified: VerifiedLayers | None, settings: AuditSettings) -> AuditCard:
    layer, family = found.first, found.family
    return AuditCard(
        title=family.title,
        model_type=getattr(found.config, "model_type", None),
        layers=len(found.layers),
        heads=layer.heads,
        groups=layer.groups,
        dim=found.dim,
        placement=layer.placement,
        norm=None if layer.norm is None else type(layer.norm).__name__,
        source=found.tensors.describe(),
        remark=family.remark,
        verified=verified,
        settings=settings,
    )


def _verify(found: Checkpoint, chosen: list[int], unverified: bool) -> VerifiedLayers:
    """Compare our attention with the original model on the first, the middle and the last layer; raises if they differ."""
    own = [index for index in chosen if index in found.attention_layers]
    picked = sorted({own[0], own[len(own) // 2], own[-1]}) if own else []
    try:
        result = found.verify(layers=picked)
    except Exception as error:  # transformers may have no code for a model whose tensors can be read
        return VerifiedLayers(picked, None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    if not result and not unverified:
        worst = max(result.layers, key=lambda check: check.error)
        raise CheckpointError(
            f"the attention that attractor reads from {found.name} is not that of the model's own code: they differ by {worst.error:.2g} "
            f"in {worst.name}, so nothing is audited; report this, or go on with --unverified (unverified=True)"
        )
    return VerifiedLayers(picked, result.error, None, bool(result))


def explain_undefined(layer: Layer) -> str | None:
    """The reason why the heads of a layer have no matrices to classify, not even values, or None."""
    return layer.undefined.get("value_map")


def audit_layer(
    layer: Layer, index: int, settings: AuditSettings, workspaces: WorkspacePool | None = None
) -> tuple[list[AuditHead], AuditLayer]:
    """All heads of a layer and the layer itself; ``workspaces`` is memory that is reused from layer to layer."""
    heads: list[AuditHead] = []
    shapes: list[HeadShape] = []
    regime: LayerRegime | None = None
    rates: tuple[float, float] | None = None
    # the growth is that of the law which reads the residual stream: the folded one if a norm lies between
    reads, after = layer.reads_copy, layer.output_norm
    growing, counted = GrowthAccumulator(layer.dim), settings.fold == reads and after is None
    process, parts = _choose_method(layer, index, settings, growing if counted else None, workspaces or WorkspacePool())
    for batch in _map_heads(process, parts, layer.dim):
        heads += _rate_labels(batch, settings)
        shapes += batch.shapes
        regime = batch.regime or regime
        if batch.context is not None and batch.regime is not None and settings.draws:
            others = label_random_layers(
                batch.context, layer.dim, [shape.sizes for shape in batch.shapes], seed=settings.seed
            )
            rates = share_label(batch.regime.label, others)
    heads = _compare_sizes(heads, shapes)
    if settings.shifts:
        heads = _find_nearest(
            heads, select_heads(layer, range(layer.heads), settings.fold), "interaction" in layer.undefined
        )
    if settings.draws and not settings.shifts:
        heads = _add_random_nulls(heads, shapes, settings.draws, settings.seed)
    other: dict[str, Quantities] = {}
    if settings.both and layer.norm is not None:
        kind, fold = ("plain", False) if settings.fold else ("folded", True)
        columns = measure_quantities(layer, fold)
        numbers = [{name: _or_none(columns[name][row]) for name in NAMES} for row in range(len(heads))]
        heads = [replace(head, **{kind: part}) for head, part in zip(heads, numbers, strict=True)]
        if settings.sums:
            value = value_spectrum(list(separate_heads(factorize(select_heads(layer, range(layer.heads), fold)))))
            other = {kind: {"value_abscissa": value.abscissa, "value_radius": value.radius}}
    if not counted:
        for members in split_heads(layer, settings.sums):
            growing.add(layer.select(members, reads, after=False))
    assert isinstance(layer.source, Heads)
    growth = growing.result(layer.source.parts.output_bias, after)
    sizes = index, layer.name, layer.heads, layer.dim
    row = AuditLayer(*sizes, growth, "normed" if reads else "stream", regime, other.get("plain"), other.get("folded"))
    return heads, row if rates is None else replace(row, label_random_rate=rates[0], certified_random_rate=rates[1])


def _choose_method(
    layer: Layer, index: int, settings: AuditSettings, growing: GrowthAccumulator | None, workspaces: WorkspacePool
) -> tuple[Callable[[range], HeadBatch], list[range]]:
    """The function that processes some heads, and the ranges of heads to give it.

    Heads of wide layers are reduced to inner products of their rows unless a result needs several heads at once.
    """

    def process(members: range) -> HeadBatch:
        law = select_heads(layer, members, settings.fold)
        if growing is not None:
            growing.add(law)
        return _process_law(law, layer, index, members, settings)

    mixing = settings.sums or settings.shifts > 0
    if "interaction" in layer.undefined:
        return partial(_process_values, layer=layer, index=index, settings=settings, growing=growing), split_heads(
            layer, mixing
        )
    if mixing or layer.dim <= WIDE or not is_wide(layer):
        return process, split_heads(layer, mixing)
    first = layer.select(range(1), settings.fold)
    setting, band = replace(Setting.of(first), softmax=is_softmax(layer, first)), BANDS.get(first.query.dtype, 1e-5)
    positions = rotary_of(first.positions)
    options = setting, positions, settings.offsets, band, first.query.dtype != torch.float64, index

    def process_wide(members: range) -> HeadBatch:
        with workspaces.borrow() as workspace:
            group = load_group(layer, members, settings.fold, workspace)
            products = group.products()
            if growing is not None:
                group.grow(growing, products)
        found = reduce_products(products, first.scale, layer.dim, members)
        if found is None:  # rows that are nearly dependent
            return _process_law(select_heads(layer, members, settings.fold), layer, index, members, settings)
        heads = [AuditHead.from_regime(row, layer.name, row.head) for row in classify_heads(found, *options)]
        return HeadBatch(heads, _shapes(found), None, LabelContext(setting, positions, settings.offsets, *options[3:5]))

    return process_wide, head_groups(layer)


def _process_law(law: Attention, layer: Layer, index: int, members: range, settings: AuditSettings) -> HeadBatch:
    band, factors = BANDS.get(law.query.dtype, 1e-5), factorize(law)
    options = {"offsets": settings.offsets, "band": band, "softmax": is_softmax(layer, law)}
    found = classify_factors(law, factors, layer=index, sums=settings.sums, **options)
    heads = [AuditHead.from_regime(row, layer.name, members[row.head]) for row in found.heads]
    if settings.draws and settings.shifts:
        for group in factors:
            own = _columns([heads[member] for member in group.members])
            scores = compute_nulls(group, own, draws=settings.draws, shifts=settings.shifts, seed=settings.seed)
            for member, score in zip(group.members, scores, strict=True):
                heads[member] = replace(heads[member], nulls=score)
    shapes = dict(pair for group in factors for pair in zip(group.members, _shapes(group.grams()), strict=True))
    setting = replace(Setting.of(law), softmax=options["softmax"])
    context = LabelContext(setting, rotary_of(law.positions), settings.offsets, band, law.query.dtype != torch.float64)
    return HeadBatch(heads, [shapes[member] for member in sorted(shapes)], found.layer, context)


def _rate_labels(batch: HeadBatch, settings: AuditSettings) -> list[AuditHead]:
    """Heads with their sizes, and with the shares of random heads of their shape that have their label."""
    found = []
    for head, shape in zip(batch.heads, batch.shapes, strict=True):
        known: dict[str, Any] = {"sizes": shape.sizes}
        if batch.context is not None and batch.context.setting.softmax and settings.draws:
            others = label_random_heads(batch.context, shape.dim, shape.sizes, settings.draws, settings.seed)
            named, certified = share_label(head.label, others)
            known |= {"label_random_rate": named, "certified_random_rate": certified}
        found.append(replace(head, **known))
    return found


def _compare_sizes(heads: list[AuditHead], shapes: list[HeadShape]) -> list[AuditHead]:
    """Heads with the sizes of their value maps over the median of the layer."""
    middle = statistics.median(shape.value for shape in shapes)
    return [
        replace(head, value_relative_size=shape.value / middle if middle else None)
        for head, shape in zip(heads, shapes, strict=True)
    ]


def _find_nearest(heads: list[AuditHead], law: Attention, values_only: bool) -> list[AuditHead]:
    """Heads with the head of the layer that is most like each of them."""
    if len(heads) < 2:
        return heads
    similar = measure_similarities(law, values_only)
    best = similar.fill_diagonal_(-1.0).max(-1)
    return [
        replace(head, nearest_head=int(other), nearest_similarity=float(cosine))
        for head, cosine, other in zip(heads, best.values, best.indices, strict=True)
    ]


def is_softmax(layer: Layer, law: Attention) -> bool:
    """Whether the weights of a layer are those of a softmax of bilinear scores: not so with sinks or clipping."""
    return has_kernel(law, "softmax") and isinstance(layer.source, Heads) and layer.source.parts.plain


def _process_values(
    members: range, layer: Layer, index: int, settings: AuditSettings, growing: GrowthAccumulator | None
) -> HeadBatch:
    """The values of some heads whose scores are not bilinear in the tokens."""
    law = layer.select(members, settings.fold)
    if growing is not None:
        growing.add(law)
    factors, band = factorize(law), BANDS.get(law.query.dtype, 1e-5)
    found = classify_values(factors, layer.undefined["interaction"], layer=index, sums=settings.sums, band=band)
    heads = [AuditHead.from_regime(row, layer.name, members[row.head]) for row in found.heads]
    if settings.draws and settings.shifts:
        for group in factors:
            own, grams = _columns([heads[member] for member in group.members]), group.grams()
            random = draw_random_heads(grams.dim, grams.sizes, settings.draws, settings.seed)
            for member, score in zip(
                group.members, compare_with_nulls(random, grams.norms, own, collect_other_heads(own)), strict=True
            ):
                heads[member] = replace(heads[member], nulls=score)
    shapes = dict(pair for group in factors for pair in zip(group.members, _shapes(group.grams()), strict=True))
    return HeadBatch(heads, [shapes[member] for member in sorted(shapes)], found.layer)


def _map_heads(process: Callable[[range], HeadBatch], parts: list[range], dim: int) -> Iterator[HeadBatch]:
    """Process ranges of heads one after the other or, in wide models, one on each processor."""
    if len(parts) < 2 or dim <= WIDE:
        yield from map(process, parts)
        return
    yield from _pool(torch.get_num_threads()).map(process, parts)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that live as long as the process: BLAS libraries keep buffers for every thread that ever called them."""
    return ThreadPoolExecutor(threads, "attractor-heads", torch.set_num_threads, (1,))


def split_heads(layer: Layer, together: bool) -> list[range]:
    """The heads of a layer in ranges whose factors fit into CHUNK bytes, or in one range; one by one where positions differ by head."""
    source = layer.source
    assert isinstance(source, Heads)
    parts = source.parts.query, source.parts.key, source.parts.value, source.parts.output
    many = max(1, CHUNK // (8 * sum(part[0].numel() for part in parts)))
    positions = source.options["positions"]
    if together or many >= layer.heads:
        return [range(layer.heads)]
    if positions is not None and rotary_of(positions) is None:
        many = 1
    return [range(start, min(start + many, layer.heads)) for start in range(0, layer.heads, many)]


def select_heads(layer: Layer, members: range, fold: bool) -> Attention:
    """The matrices of some heads, or of the whole layer."""
    return layer.select(members, fold=fold)


def measure_quantities(layer: Layer, fold: bool) -> dict[str, list[float]]:
    """The quantities of every head of a layer, as columns; NaN where one is undefined."""
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    halves: tuple[Half, ...] = ("moves",) if "interaction" in layer.undefined else ("scores", "moves", "both")
    for members in split_heads(layer, False):
        table = {name: [float("nan")] * len(members) for name in NAMES}
        for group in factorize(select_heads(layer, members, fold)):
            for name, column in compute_quantities(group.grams(), halves).items():
                for member, value in zip(group.members, column.tolist(), strict=True):
                    table[name][member] = value
        for name in NAMES:
            found[name] += table[name]
    return found


def _shapes(heads: SmallMatrices) -> list[HeadShape]:
    norms = (norm.tolist() for norm in heads.norms)
    return [HeadShape(heads.dim, heads.sizes, *pair) for pair in zip(*norms, strict=True)]


def _add_random_nulls(heads: list[AuditHead], shapes: list[HeadShape], draws: int, seed: int) -> list[AuditHead]:
    """Compare heads with random ones of their shape; quantities of one half of a head also with the other heads of the layer."""
    heads = list(heads)
    for dim, sizes in sorted({(shape.dim, shape.sizes) for shape in shapes}):
        chosen = [index for index, shape in enumerate(shapes) if (shape.dim, shape.sizes) == (dim, sizes)]
        columns = _columns([heads[index] for index in chosen])
        interaction, value = (
            torch.tensor([getattr(shapes[index], name) for index in chosen], dtype=torch.float64)
            for name in ("interaction", "value")
        )
        scores = compare_with_nulls(
            draw_random_heads(dim, sizes, draws, seed), (interaction, value), columns, collect_other_heads(columns)
        )
        for index, score in zip(chosen, scores, strict=True):
            heads[index] = replace(heads[index], nulls=score)
    return heads


def add_error_bars(
    heads: list[AuditHead], checkpoint: Checkpoint, index: int, settings: AuditSettings
) -> list[AuditHead]:
    """The heads of one layer with error bars of their quantised weights."""
    stored = {name: column.tolist() for name, column in _columns(heads).items()}
    seeds = range(settings.seed, settings.seed + settings.copies)
    copies = [measure_quantities(copy.layers[index], settings.fold) for copy in perturb(checkpoint, seeds)]
    return [replace(head, errors=bars) for head, bars in zip(heads, error_bars(stored, copies), strict=True)]


def _columns(heads: Sequence[AuditHead]) -> dict[str, Tensor]:
    columns = {name: [head.quantities[name] for head in heads] for name in NAMES}
    return {
        name: torch.tensor([float("nan") if value is None else value for value in column], dtype=torch.float64)
        for name, column in columns.items()
    }


def _or_none(value: float) -> float | None:
    return value if value == value else None
