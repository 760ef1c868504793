"""Predicted against measured growth of tokens in real models."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attractor.errors import InputError
from attractor.laws import Attention
from attractor.models import BlockStates, Checkpoint, Layer, Session, checkpoint
from attractor.solvers import velocity
from attractor.states import Tokens
from attractor.weights import regime

RESAMPLES = 2000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One model: an outcome over layers (n,) and predictors (p, n)."""

    outcome: Array
    predictors: Array

    @property
    def layers(self) -> int:
        return len(self.outcome)


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho with its interval, the two-sided p-value of a permutation test and the one for all predictors together, and
    the largest |rho| that 95% of permutations stay below (``null``); see above for ``p_shift`` and ``given_depth``."""

    rho: float
    low: float
    high: float
    p: float
    family: float
    null: float
    p_shift: float
    given_depth: float

    def row(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Difference:
    """|rho| of one predictor minus |rho| of another, with its interval over the same resamples."""

    value: float
    low: float
    high: float

    def row(self) -> dict[str, Any]:
        return dict(vars(self))


class Ranks:
    """Correlations of all predictors with one outcome, over one model or several."""

    def __init__(self, samples: Sequence[Sample], seed: int, resamples: int = RESAMPLES) -> None:
        draw = np.random.default_rng(seed)
        weights = np.array([sample.layers for sample in samples], dtype=np.float64)
        weights /= weights.sum()
        mean = lambda parts: np.tensordot(weights, np.stack(parts), 1)  # noqa: E731
        self.rho: Array = mean([spearman(sample.predictors, sample.outcome[None]) for sample in samples])
        self._resampled: Array = mean([_bootstrap(sample, draw, resamples) for sample in samples])  # (b, p)
        self._permuted: Array = mean([_permutations(sample, draw, resamples) for sample in samples])
        self._shifted: Array = mean([_shifts(sample, draw, resamples) for sample in samples])
        self._partial: Array = mean([given_depth(sample) for sample in samples])

    def correlation(self, index: int) -> Correlation:
        low, high = np.quantile(self._resampled[:, index], (0.025, 0.975))
        null, seen = np.abs(self._permuted[:, index]), abs(self.rho[index])
        largest = np.abs(self._permuted).max(1)
        slack = 1e-12  # permutations that give the same rho up to rounding count
        share = lambda values: float((1 + (values >= seen - slack).sum()) / (1 + len(values)))  # noqa: E731
        limit = float(np.quantile(null, 0.95))
        shifted = share(np.abs(self._shifted[:, index]))
        ends = float(self.rho[index]), float(low), float(high)
        return Correlation(*ends, share(null), share(largest), limit, shifted, float(self._partial[index]))

    def difference(self, one: int, other: int) -> Difference:
        change = np.abs(self._resampled[:, one]) - np.abs(self._resampled[:, other])
        low, high = np.quantile(change, (0.025, 0.975))
        return Difference(float(abs(self.rho[one]) - abs(self.rho[other])), float(low), float(high))


def spearman(first: Array, second: Array) -> Array:
    """Rank correlations of the last axes, other axes broadcast; zero where either is constant."""
    from scipy.stats import rankdata

    a, b = (rankdata(part, axis=-1) for part in (first, second))
    a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    size = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return (a * b).sum(-1) / np.where(size > 0, size, 1.0) * (size > 0)


def _bootstrap(sample: Sample, draw: np.random.Generator, count: int) -> Array:
    chosen = draw.integers(0, sample.layers, (count, sample.layers))
    return spearman(sample.predictors[:, chosen].swapaxes(0, 1), sample.outcome[chosen][:, None])


def _permutations(sample: Sample, draw: np.random.Generator, count: int) -> Array:
    mixed = draw.permuted(np.tile(sample.outcome, (count, 1)), axis=1)
    return spearman(sample.predictors[None], mixed[:, None])


def _shifts(sample: Sample, draw: np.random.Generator, count: int) -> Array:
    layers = np.arange(sample.layers)
    turned = (layers + draw.integers(0, sample.layers, (count, 1))) % sample.layers
    turned = np.where(draw.random((count, 1)) < 0.5, turned, turned[:, ::-1])
    return spearman(sample.predictors[None], sample.outcome[turned][:, None])


def given_depth(sample: Sample) -> Array:
    """Partial rank correlations (p,) with the layer's number held fixed."""
    depth = np.arange(sample.layers, dtype=np.float64)[None]
    both = spearman(sample.predictors, sample.outcome[None])
    one, other = spearman(sample.predictors, depth), spearman(sample.outcome[None], depth)
    left = np.sqrt(np.clip((1 - one**2) * (1 - other**2), 0.0, None))
    return (both - one * other) / np.where(left > 1e-12, left, 1.0) * (left > 1e-12)


ENGLISH = (
    "The river had been rising since dawn, and by noon the lower fields were under water. Nobody in the "
    "village remembered anything like it, though the oldest of them had stories of a flood that carried away "
    "the bridge.",
    "A good proof does more than convince: it explains. One reads it twice, the first time to believe that "
    "the statement is true and the second to understand why it could not have been otherwise.",
    "She opened the shop at eight, swept the floor, and set the bread in the window. The first customers were"
    " always the same: the teacher, the two nurses coming off the night shift, and the man with the small "
    "grey dog.",
    "Interest rates were left unchanged for the third month in a row. Most economists had expected as much, "
    "but the statement that came with the decision was read as a hint that cuts might come sooner than "
    "planned.",
    "To replace the filter, first switch off the pump and close both valves. Unscrew the housing by hand, "
    "take out the old cartridge, wipe the seal with a clean cloth, and insert the new one with the arrow "
    "pointing up.",
    "Bees find their way back by the sun, even when it is hidden. They see how the light of the sky is "
    "polarised, and from that pattern they know where the sun must be, as a sailor knows north from a few "
    "stars.",
    "The committee met on Tuesday to discuss the budget for the coming year. After a long debate it was "
    "agreed to repair the roof of the library first and to postpone the new playground until the autumn.",
    "When water freezes it expands, which is why ice floats and pipes burst. Most substances do the opposite;"
    " water owes its habit to the open lattice in which its molecules arrange themselves when they slow down.",
)
STORIES = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, "
    "she saw a big red ball under a tree. She wanted to play with it, but it was too high.",
    "Tom had a small boat. He liked to play with it in the bath. One day, the boat did not float. Tom was "
    'sad. His mom said, "Let us fix it together." They put some tape on the boat and it was happy again.',
    "There was a cat who lived in a big house. The cat was very sleepy. A bird came to the window and sang a "
    "song. The cat opened one eye and smiled. Then the cat went back to sleep.",
    "One day, Ben and his dad went to the zoo. They saw a lion, a monkey and a very tall giraffe. Ben wanted "
    "to feed the monkey. His dad gave him a banana. The monkey was happy and clapped.",
    "Anna had a secret box. In the box she kept a blue stone, a feather and a key. She did not know what the "
    "key was for. One day she found a tiny door in the garden wall, and the key fit.",
    'It was raining and Sam could not go out. He was bored. His sister said, "We can make a tent!" They took '
    "some blankets and pillows and made a tent in the living room. They told stories until dinner.",
)
ANTIBODIES = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK",
    "QVQLQQPGAELVKPGASVKMSCKASGYTFTSYNMHWVKQTPGRGLEWIGAIYPGNGDTSYNQKFKGKATLTADKSSSTAYMQLSSLTSEDSAVYYCARSTYYGGDWYFNVWGAGTTVTVSA",
    "QIVLSQSPAILSASPGEKVTMTCRASSSVSYIHWFQQKPGSSPKPWIYATSNLASGVPVRFSGSGSGTSYSLTISRVEAEDAATYYCQQWTSNPPTFGGGTKLEIK",
)
REACTIONS = (
    "CC(=O)O.CCO>>CCOC(C)=O",
    "Brc1ccccc1.OB(O)c1ccc(C)cc1>>Cc1ccc(-c2ccccc2)cc1",
    "O=C(O)c1ccccc1.NCc1ccccc1>>O=C(NCc1ccccc1)c1ccccc1",
    "CC(=O)c1ccccc1.O=Cc1ccccc1>>O=C(C=Cc1ccccc1)c1ccccc1",
    "C=CC=C.O=C1C=CC(=O)O1>>O=C1OC(=O)C2CC=CCC12",
    "O=[N+]([O-])c1ccc(Cl)cc1.C1COCCN1>>O=[N+]([O-])c1ccc(N2CCOCC2)cc1",
    "CC(C)(C)OC(=O)NCc1ccccc1>>NCc1ccccc1",
    "COc1ccc(C=O)cc1.NCCc1ccccc1>>COc1ccc(CNCCc1ccccc1)cc1",
)
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")


@dataclass(frozen=True)
class Subject:
    """A model, what it reads (texts, or token ids), and the ``lineage`` it shares with models trained from the same weights."""

    name: str
    checkpoint: Checkpoint
    inputs: tuple[Any, ...]
    lineage: str


def known() -> tuple[str, ...]:
    """The names of the models of the experiment."""
    return ("minilm", "smollm2", "stories15M", "antiberty", "rxnfp")


def subjects(names: tuple[str, ...], texts: tuple[str, ...] | None = None) -> list[Subject]:
    """The models of those names, fetched if they are not here; anything else is opened as it is and reads ``texts`` (or English)."""
    return [subject for name in names for subject in _subjects(name, texts)]


def _subjects(name: str, texts: tuple[str, ...] | None) -> list[Subject]:
    opened = checkpoint(name)
    name = next((one for one in known() if one.lower() == name.lower()), name)
    place = Path(opened.tensors.describe())
    folder = place if place.is_dir() else place.parent
    if name == "rxnfp" and texts is None:
        root = folder.parent
        folders = sorted(root.glob("bert*"), key=lambda path: path.name != "bert_pretrained")
        parts = [replace(checkpoint(path), name=f"rxnfp {path.name.removeprefix('bert_')}") for path in folders]
        return [
            Subject(part.name, part, tuple(_reactions(path)), name) for part, path in zip(parts, folders, strict=True)
        ]
    if name == "antiberty" and texts is None:
        return [Subject(name, opened, tuple(_antibodies(folder)), name)]
    own = {"stories15M": STORIES}.get(name, ENGLISH)
    return [Subject(name, opened, own if texts is None else texts, name)]


def _antibodies(folder: Path) -> list[list[int]]:
    return [_ids(folder, list(sequence)) for sequence in ANTIBODIES]


def _reactions(folder: Path) -> list[list[int]]:
    return [_ids(folder, SMILES.findall(reaction)) for reaction in REACTIONS]


def _ids(folder: Path, tokens: list[str]) -> list[int]:
    """One token a residue or an atom, between the marks of BERT; their packages tokenise so, not by word pieces."""
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    numbers = {token: index for index, token in enumerate(vocabulary)}
    missing = [token for token in tokens if token not in numbers]
    if missing:
        raise InputError(f"the vocabulary of {folder} has no {missing[0]!r}")
    return [numbers[token] for token in ("[CLS]", *tokens, "[SEP]")]


OUTCOMES = {
    "stream": "norm of the stream across attention, log ratio",
    "stream_all": "the same with the first token",
    "rate": "rate at which the layer's flow lengthens tokens",
    "block": "norm of the stream across the block, log ratio",
}


@dataclass(frozen=True)
class Measured:
    """``outcomes`` (name to one number a layer, None where undefined), means over inputs, and for every layer and head the share of
    inputs whose tokens all lie on one side of an eigenvector with a positive eigenvalue (``separated``)."""

    outcomes: dict[str, list[float | None]]
    separated: list[list[float]]
    tokens: tuple[int, ...]


def folds(layer: Layer) -> bool:
    """Whether the law acts on normalised copies of the stream."""
    return layer.reads_copy


def measure(subject: Subject) -> Measured:
    """Run the model on its inputs."""
    session = Session.open(subject.checkpoint, None, (), None)
    layers = [_Layer(subject.checkpoint, index) for index in range(len(subject.checkpoint.layers))]
    lengths = []
    for index, given in enumerate(subject.inputs, 1):
        try:
            inputs, _ = session.inputs(given)
        except InputError as error:
            begins = f" ({given[:24]!r}...)" if isinstance(given, str) else ""
            raise InputError(f"text {index}{begins} for {subject.name}: {error}") from None
        lengths.append(int(next(iter(inputs.values())).shape[-1]))
        session.run(inputs, False, lambda states: layers[states.index].see(states))
    outcomes = {name: [layer.mean(name) for layer in layers] for name in OUTCOMES}
    return Measured(outcomes, [layer.separated() for layer in layers], tuple(lengths))


class _Layer:
    """What one layer did, input after input."""

    def __init__(self, checkpoint: Checkpoint, index: int) -> None:
        self._layer = checkpoint.layers[index]
        self._rows: list[dict[str, float]] = []
        self._sides: list[list[bool]] = []

    def see(self, states: BlockStates) -> None:
        layer, before = self._layer, states.before.double()
        read = states.attention_input.double()
        added = velocity(layer.attention, Tokens(read))
        if layer.output_norm is not None:
            added = layer.output_norm(added)
        acts = read if not folds(layer) or layer.bare_norm is None else layer.bare_norm(before)
        row = {
            "stream": _log_ratio((before + added)[1:], before[1:]),
            "stream_all": _log_ratio(before + added, before),
            "rate": float((acts * added)[1:].sum() / acts[1:].square().sum()),
        }
        if folds(layer):
            row["block"] = _log_ratio(states.after.double()[1:], before[1:])
        self._rows.append(row)
        self._sides.append([one_sided(self._layer, head, acts) for head in range(layer.heads)])

    def mean(self, name: str) -> float | None:
        values = [row[name] for row in self._rows if name in row]
        return sum(values) / len(values) if values else None

    def separated(self) -> list[float]:
        return torch.tensor(self._sides, dtype=torch.float64).mean(0).tolist()


def one_sided(layer: Layer, head: int, tokens: Tensor) -> bool:
    """The hypothesis of T6: a left eigenvector u of the value with a positive eigenvalue and <u, x> of one sign for all tokens."""
    law = layer.head(head, fold=folds(layer))
    if not isinstance(law, Attention) or law.output is None:
        return False
    # y' (V O) = c y' gives u = V' y, so that <u, x> = <y, V x>
    values, vectors = torch.linalg.eig((law.value @ law.output).mT)
    size = values.abs().max()
    good = (values.imag.abs() <= 1e-12 * size) & (values.real > 1e-12 * size)
    sides = (tokens @ law.value.mT) @ vectors[:, good].real
    return bool(((sides > 0).all(0) | (sides < 0).all(0)).any())


def _log_ratio(after: Tensor, before: Tensor) -> float:
    return float((after.square().sum() / before.square().sum()).log()) / 2


# name: (group, words); the first of each group and of the value are what the question is about
PREDICTORS: dict[str, tuple[str, str]] = {
    "value_abscissa": ("value", "largest real part of the spectrum of M"),
    "value_radius": ("value", "discrete radius, of I + M"),
    "value_mean": ("value", "mean eigenvalue of M, tr M / d"),
    "interaction_index": ("W", "definiteness index of W"),
    "interaction_high": ("W", "largest eigenvalue of sym W"),
    "reduced_interaction": ("W", "index of the reduced W, mean over heads"),
    "metric_index": ("A", "definiteness index of the metric form"),
    "shared_index": ("A", "index of the best common metric"),
    "reduced_metric": ("A", "index of the reduced metric, mean over heads"),
    "growing": ("A", "share of growing directions of the heads"),
    "size": ("size", "Frobenius norm of M (control)"),
}
THEOREMS = {
    "collapse": ("regimes.T1", "regimes.T2", "regimes.T8"),
    "divergence": ("regimes.T3", "regimes.T4", "regimes.T8.converse"),
}


@dataclass(frozen=True)
class Promised:
    """``predictors`` (name to one number a layer), and the ``heads`` of the model and of random heads of the same shapes, as counts."""

    predictors: dict[str, list[float]]
    heads: dict[str, Any]
    random: dict[str, Any]


def promise(checkpoint: Checkpoint, seed: int) -> Promised:
    """Everything that is said of a model's weights."""
    table: dict[str, list[float]] = {name: [] for name in PREDICTORS}
    own, random = [], []
    draw = torch.Generator().manual_seed(seed)
    for layer in checkpoint.layers.prefetch(range(len(checkpoint.layers))):
        law = layer.law(fold=folds(layer))
        assert isinstance(law, Attention)
        for name, number in predictors(law, own).items():
            table[name].append(number)
        random += [head.row() for head in regime(gaussian(law, draw), sums=False, offsets=()).heads]
    return Promised(table, tally(own), tally(random))


def predictors(law: Attention, rows: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers of one layer; the rows of its heads are added to ``rows``."""
    found = regime(law, offsets=())
    assert found.layer is not None
    heads = [head.row() for head in found.heads]
    rows += heads
    mean = lambda name: sum(row[name] for row in heads) / len(heads)  # noqa: E731
    total = value_sum(law)
    whole = found.layer
    return {
        "value_abscissa": whole.value.abscissa,
        "value_radius": whole.value.radius,
        "value_mean": float(total.diagonal().mean()),
        "interaction_index": whole.interaction.index,
        "interaction_high": whole.interaction.high,
        "reduced_interaction": mean("reduced_interaction_index"),
        "metric_index": whole.metric.index,
        "shared_index": whole.shared_metric.index,
        "reduced_metric": mean("reduced_metric_index"),
        "growing": mean("growing"),
        "size": float(torch.linalg.matrix_norm(total)) / law.dim**0.5,
    }


def value_sum(law: Attention) -> Tensor:
    """M, (d, d)."""
    maps = law.value_map.double()
    return maps if maps.ndim == 2 else maps.sum(0)


def gaussian(law: Attention, draw: torch.Generator) -> Attention:
    """A law of the same shape, mask and positions with normal weights."""
    names = [name for name in ("query", "key", "value", "output") if getattr(law, name) is not None]
    fresh = {
        name: torch.randn(getattr(law, name).shape, generator=draw, dtype=torch.float64) / law.dim**0.5
        for name in names
    }
    return dataclasses.replace(law, **fresh)


def tally(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many heads meet which hypothesis, and how near the nearest come."""
    proofs = Counter(row["certificate"] for row in rows)
    share = lambda name, *words: sum(row[name] in words for row in rows)  # noqa: E731
    return {
        "heads": len(rows),
        "W positive": share("reduced_interaction_sign", "positive"),
        "W negative": share("reduced_interaction_sign", "negative"),
        "A positive": share("reduced_metric_sign", "positive"),
        "A negative": share("reduced_metric_sign", "negative"),
        "value stable": share("value_stability", "stable"),
        "collapse proved": sum(proofs[key] for key in THEOREMS["collapse"]),
        "divergence proved": sum(proofs[key] for key in THEOREMS["divergence"]),
        "divergence proved by the value under a causal mask": proofs["regimes.T8.converse"],
        "labels": dict(Counter(row["label"] for row in rows)),
        "largest W index": max(row["reduced_interaction_index"] for row in rows),
        "smallest A index": min(row["reduced_metric_index"] for row in rows),
        "largest A index": max(row["reduced_metric_index"] for row in rows),
        "smallest asymmetry of A": min(
            (row["metric_asymmetry"] for row in rows if row["metric_asymmetry"] is not None), default=None
        ),
    }


LEVEL = 0.05


def answers(document: dict[str, Any]) -> list[str]:
    """One sentence for each question."""
    return [_hypotheses(document), *(_growth(document, outcome) for outcome in OUTCOMES if _rows(document, outcome))]


def _hypotheses(document: dict[str, Any]) -> str:
    models = document["models"]
    count = lambda key: sum(model["heads"][key] for model in models)  # noqa: E731
    heads, causal = count("heads"), count("divergence proved by the value under a causal mask")
    random = sum(model["random_heads"]["divergence proved by the value under a causal mask"] for model in models)
    sides = max(model["heads"]["tokens on one side, share of heads and inputs"] for model in models)
    text = (
        f"of {heads} heads {count('collapse proved')} meet the hypotheses of a theorem on collapse; "
        f"{count('W positive')} have a positive and {count('W negative')} a negative definite reduced W, "
        f"{count('A negative')} a negative and {count('A positive')} a positive definite reduced metric, "
        f"{count('value stable')} a stable value"
    )
    other = count("divergence proved") - causal
    text += f"; {other} meet the hypotheses of a theorem on divergence by A and W"
    if causal:
        text += f", and {causal} that of an unstable value under a causal mask, as {random} random heads of the same shapes do"
    return (
        f"{text}. Tokens all on one side of an unstable direction: at most {sides:.2g} of heads and inputs of a model"
    )


def _growth(document: dict[str, Any], outcome: str) -> str:
    rows = _rows(document, outcome)
    found = [row for row in rows if row["family"] < LEVEL]
    strongest = max(rows, key=lambda row: abs(row["rho"]))
    told = [f"{_name(row)} rho {row['rho']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in found]
    text = f"{OUTCOMES[outcome]}: "
    text += (
        f"ranked by {'; '.join(told)}"
        if told
        else f"nothing ranks the layers (the strongest, {_name(strongest)}, has rho {strongest['rho']:.2f}, "
        f"p = {strongest['family']:.2g} for all predictors together)"
    )
    parts = [row for row in document["differences"] if row["outcome"] == outcome]
    better = [row for row in parts if row["low"] > 0]
    worse = [row for row in parts if row["high"] < 0]
    return (
        f"{text}. The abscissa or radius of the value has a larger |rho| than W and A do in {len(better)} of {len(parts)} comparisons "
        f"at the 95% level, a smaller one in {len(worse)}"
    )


def _rows(document: dict[str, Any], outcome: str) -> list[dict[str, Any]]:
    return [row for row in document["pooled"] if row["outcome"] == outcome]


def _name(row: dict[str, Any]) -> str:
    return PREDICTORS[row["predictor"]][1]


ASKED = ("value_abscissa", "value_radius")
AGAINST = ("interaction_index", "reduced_interaction", "metric_index", "reduced_metric")
FEWEST = 5  # layers: with fewer a rank correlation says nothing


def run(
    names: Sequence[str] = (),
    *,
    texts: tuple[str, ...] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Every model by name; a document ready for JSON."""
    tell = progress or (lambda line: None)
    found = subjects(tuple(names) or known(), texts)
    models = []
    for subject in found:
        tell(f"{subject.name}: {len(subject.checkpoint.layers)} layers, {len(subject.inputs)} inputs")
        models.append(_model(subject, seed))
    pooled = first_of_each_lineage(models)
    return {
        "seed": seed,
        "resamples": resamples,
        "outcomes": OUTCOMES,
        "predictors": {name: {"group": group, "words": words} for name, (group, words) in PREDICTORS.items()},
        "models": models,
        "correlations": [row for model in models for row in correlations([model], model["name"], seed, resamples)],
        "pooled_over": [model["name"] for model in pooled],
        "pooled": correlations(pooled, "all", seed, resamples),
        "differences": differences(pooled, seed, resamples),
    }


def first_of_each_lineage(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Models trained from the same weights are no independent evidence: one of each."""
    seen: dict[str, dict[str, Any]] = {}
    for model in models:
        if len(model["layers"]["size"]) >= FEWEST:
            seen.setdefault(model["lineage"], model)
    return list(seen.values())


def _model(subject: Subject, seed: int) -> dict[str, Any]:
    opened = subject.checkpoint
    if "interaction" in opened.layers[0].undefined:
        raise InputError(f"{subject.name} has no bilinear scores: {opened.layers[0].undefined['interaction']}")
    said, seen = promise(opened, seed), measure(subject)
    sides = np.array(seen.separated)
    return {
        "name": subject.name,
        "lineage": subject.lineage,
        "family": opened.family.name,
        "placement": opened.layers[0].placement,
        "dim": opened.dim,
        "inputs": len(subject.inputs),
        "tokens": list(seen.tokens),
        "notes": list(opened.notes),
        "heads": {**said.heads, "tokens on one side, share of heads and inputs": float(sides.mean())},
        "random_heads": said.random,
        "layers": {**said.predictors, **seen.outcomes},
    }


def samples(models: list[dict[str, Any]], outcome: str) -> list[Sample]:
    """The models for which the outcome is defined and that have layers enough."""
    good = [m["layers"] for m in models if m["layers"][outcome][0] is not None and len(m["layers"][outcome]) >= FEWEST]
    return [
        Sample(np.array(layers[outcome], dtype=np.float64), np.array([layers[name] for name in PREDICTORS]))
        for layers in good
    ]


def correlations(models: list[dict[str, Any]], name: str, seed: int, resamples: int) -> list[dict[str, Any]]:
    rows = []
    for outcome in OUTCOMES:
        chosen = samples(models, outcome)
        if not chosen:
            continue
        ranks = Ranks(chosen, seed, resamples)
        layers = sum(sample.layers for sample in chosen)
        for index, predictor in enumerate(PREDICTORS):
            row = {"model": name, "layers": layers, "outcome": outcome, "predictor": predictor}
            rows.append({**row, **ranks.correlation(index).row()})
    return rows


def differences(models: list[dict[str, Any]], seed: int, resamples: int) -> list[dict[str, Any]]:
    """Whether the value says more than W and A do."""
    rows, names = [], list(PREDICTORS)
    for outcome in OUTCOMES:
        chosen = samples(models, outcome)
        if not chosen:
            continue
        ranks = Ranks(chosen, seed, resamples)
        for one in ASKED:
            for other in AGAINST:
                difference = ranks.difference(names.index(one), names.index(other))
                rows.append({"outcome": outcome, "predictor": one, "against": other, **difference.row()})
    return rows
