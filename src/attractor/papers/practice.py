"""Theory and practice: which heads of real models satisfy hypotheses of theorems, and which spectra of weights predict "
"growth of tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.laws import Attention
from attractor.models import (
    BlockStates,
    Checkpoint,
    Layer,
    Session,
    checkpoint,
    require_transformers,
    silence_transformers,
)
from attractor.papers.figure import SEED, Data, Figure, Parameter, Settings, Table, Update, Verdict, command_of
from attractor.papers.rank_correlation import Ranks, Sample
from attractor.solvers import velocity
from attractor.states import Tokens
from attractor.weights import regime

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
    """A model, its inputs (texts, or token ids), and the ``lineage`` it shares with models trained from the same weights."""

    name: str
    checkpoint: Checkpoint
    inputs: tuple[Any, ...]
    lineage: str


MODELS = ("minilm", "smollm2", "stories15M", "antiberty", "rxnfp")


def open_subjects(names: Sequence[str], texts: tuple[str, ...] | None = None) -> list[Subject]:
    """Open models by name or path, with ``texts`` or, without them, the inputs that the model was trained for."""
    return [subject for name in names for subject in _open_subject(name, texts)]


def _open_subject(name: str, texts: tuple[str, ...] | None) -> list[Subject]:
    opened = checkpoint(name)
    name = next((known for known in MODELS if known.lower() == name.lower()), name)
    place = Path(opened.tensors.describe())
    folder = place if place.is_dir() else place.parent
    if name == "rxnfp" and texts is None:
        root = folder.parent
        folders = sorted(root.glob("bert*"), key=lambda path: path.name != "bert_pretrained")
        parts = [replace(checkpoint(path), name=f"rxnfp {path.name.removeprefix('bert_')}") for path in folders]
        inputs = [tuple(_token_ids(path, SMILES.findall(text)) for text in REACTIONS) for path in folders]
        return [Subject(part.name, part, ids, name) for part, ids in zip(parts, inputs, strict=True)]
    if name == "antiberty" and texts is None:
        return [Subject(name, opened, tuple(_token_ids(folder, list(text)) for text in ANTIBODIES), name)]
    own = {"stories15M": STORIES}.get(name, ENGLISH)
    return [Subject(name, opened, own if texts is None else texts, name)]


def _token_ids(folder: Path, tokens: list[str]) -> list[int]:
    """Return one id for each residue or atom, between the special tokens of BERT; the models were trained so, without word pieces."""
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
class Growth:
    """Measured growth of tokens.

    Attributes
    ----------
    outcomes : for each name one number per layer, the mean over inputs; None where undefined.
    separated : for every layer and head the share of inputs whose tokens lie on one side of an unstable direction.
    """

    outcomes: dict[str, list[float | None]]
    separated: list[list[float]]
    tokens: tuple[int, ...]


def measure_growth(subject: Subject) -> Growth:
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
        session.run(inputs, False, lambda states: layers[states.index].record(states))
    outcomes = {name: [layer.mean(name) for layer in layers] for name in OUTCOMES}
    return Growth(outcomes, [layer.separated() for layer in layers], tuple(lengths))


class _Layer:
    """Measurements of one layer, input after input."""

    def __init__(self, checkpoint: Checkpoint, index: int) -> None:
        self._layer = checkpoint.layers[index]
        self._rows: list[dict[str, float]] = []
        self._sides: list[list[bool]] = []

    def record(self, states: BlockStates) -> None:
        layer, before = self._layer, states.before.double()
        assert states.attention_input is not None  # models with laws have a family
        read = states.attention_input.double()
        added = velocity(layer.attention, Tokens(read))
        acts = read if not layer.reads_copy or layer.bare_norm is None else layer.bare_norm(before)
        row = {
            "stream": _log_ratio((before + added)[1:], before[1:]),
            "stream_all": _log_ratio(before + added, before),
            "rate": float((acts * added)[1:].sum() / acts[1:].square().sum()),
        }
        if layer.reads_copy:
            row["block"] = _log_ratio(states.after.double()[1:], before[1:])
        self._rows.append(row)
        self._sides.append([is_one_sided(self._layer, head, acts) for head in range(layer.heads)])

    def mean(self, name: str) -> float | None:
        values = [row[name] for row in self._rows if name in row]
        return sum(values) / len(values) if values else None

    def separated(self) -> list[float]:
        return torch.tensor(self._sides, dtype=torch.float64).mean(0).tolist()


def is_one_sided(layer: Layer, head: int, tokens: Tensor) -> bool:
    """Whether T6 applies: <u, x> has one sign for all tokens, u a left eigenvector of the value with a positive eigenvalue."""
    law = layer.head(head, fold=layer.reads_copy)
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


# name: (group, description)
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
class Weights:
    """``predictors``, one number per layer for each name, and counts over the heads and over random heads of the same shapes."""

    predictors: dict[str, list[float]]
    heads: dict[str, Any]
    random: dict[str, Any]


def analyse_weights(checkpoint: Checkpoint, seed: int) -> Weights:
    """Return the predictors and the hypotheses that hold, from the weights alone."""
    table: dict[str, list[float]] = {name: [] for name in PREDICTORS}
    own, random = [], []
    draw = torch.Generator().manual_seed(seed)
    for layer in checkpoint.layers.prefetch(range(len(checkpoint.layers))):
        law = layer.law(fold=layer.reads_copy)
        assert isinstance(law, Attention)
        for name, number in compute_predictors(law, own).items():
            table[name].append(number)
        random += [head.row() for head in regime(draw_weights(law, draw), sums=False, offsets=()).heads]
    return Weights(table, count_hypotheses(own), count_hypotheses(random))


def compute_predictors(law: Attention, rows: list[Data]) -> dict[str, float]:
    """Return the predictors of one layer; the rows of its heads are appended to ``rows``."""
    found = regime(law, offsets=())
    assert found.layer is not None
    heads = [head.row() for head in found.heads]
    rows += heads
    mean = lambda name: sum(row[name] for row in heads) / len(heads)  # noqa: E731
    maps = law.value_map.double()
    total = maps if maps.ndim == 2 else maps.sum(0)
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


def draw_weights(law: Attention, draw: torch.Generator) -> Attention:
    """Return a law of the same shape, mask and positions with normal weights."""
    names = [name for name in ("query", "key", "value", "output") if getattr(law, name) is not None]
    fresh = {
        name: torch.randn(getattr(law, name).shape, generator=draw, dtype=torch.float64) / law.dim**0.5
        for name in names
    }
    return replace(law, **fresh)


def count_hypotheses(rows: list[Data]) -> Data:
    """Count the heads that satisfy each hypothesis, and return the extreme indices."""
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


def answer_questions(data: Data) -> list[str]:
    """Return one sentence for each question."""
    return [_hypotheses(data), *(_growth(data, outcome) for outcome in OUTCOMES if _rows(data, outcome))]


def _hypotheses(data: Data) -> str:
    models = data["models"]
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


def _growth(data: Data, outcome: str) -> str:
    rows = _rows(data, outcome)
    found = [row for row in rows if row["family"] < LEVEL]
    strongest = max(rows, key=lambda row: abs(row["rho"]))
    ranked = [f"{_name(row)} rho {row['rho']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in found]
    text = f"{OUTCOMES[outcome]}: "
    text += (
        f"ranked by {'; '.join(ranked)}"
        if ranked
        else f"nothing ranks the layers (the strongest, {_name(strongest)}, has rho {strongest['rho']:.2f}, "
        f"p = {strongest['family']:.2g} for all predictors together)"
    )
    parts = [row for row in data["differences"] if row["outcome"] == outcome]
    better = [row for row in parts if row["low"] > 0]
    worse = [row for row in parts if row["high"] < 0]
    return (
        f"{text}. The abscissa or radius of the value has a larger |rho| than W and A do in {len(better)} of {len(parts)} comparisons "
        f"at the 95% level, a smaller one in {len(worse)}"
    )


def _rows(data: Data, outcome: str) -> list[Data]:
    return [row for row in data["pooled"] if row["outcome"] == outcome]


def _name(row: dict[str, Any]) -> str:
    return PREDICTORS[row["predictor"]][1]


VALUE_PREDICTORS = ("value_abscissa", "value_radius")
OTHER_PREDICTORS = ("interaction_index", "reduced_interaction", "metric_index", "reduced_metric")
FEWEST = 5  # layers: rank correlations of fewer are meaningless


def compute(settings: Settings, progress: Update) -> Data:
    """Analyse the weights of every model, run it on its inputs, and correlate both over layers."""
    seed, resamples = settings["seed"], settings["resamples"]
    require_transformers()
    with silence_transformers():
        subjects = open_subjects(settings["models"] or MODELS, read_texts(settings["file"]))
        models = []
        for index, subject in enumerate(subjects):
            progress(index, len(subjects))
            models.append(_model(subject, seed))
    pooled = first_of_each_lineage(models)
    data = {
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
    return {"answers": answer_questions(data), **data}


def read_texts(file: str) -> tuple[str, ...] | None:
    """Return the lines of a file that are not blank, or None for an empty name."""
    if not file:
        return None
    path = Path(file)
    if not path.is_file():
        raise InputError(f"file {path} is not a file that can be read")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"file {path} cannot be read as text in UTF-8: {error}") from None
    texts = tuple(line for line in lines if line.strip())
    if not texts:
        raise InputError(f"file {path} has no text in it: give one text per line")
    return texts


def first_of_each_lineage(models: list[Data]) -> list[Data]:
    """Return one model of each lineage: models trained from the same weights are not independent."""
    seen: dict[str, dict[str, Any]] = {}
    for model in models:
        if len(model["layers"]["size"]) >= FEWEST:
            seen.setdefault(model["lineage"], model)
    return list(seen.values())


def _model(subject: Subject, seed: int) -> Data:
    opened = subject.checkpoint
    if "interaction" in opened.layers[0].undefined:
        raise InputError(f"{subject.name} has no bilinear scores: {opened.layers[0].undefined['interaction']}")
    weights, growth = analyse_weights(opened, seed), measure_growth(subject)
    sides = np.array(growth.separated)
    return {
        "name": subject.name,
        "lineage": subject.lineage,
        "family": opened.family.name,
        "placement": opened.layers[0].placement,
        "dim": opened.dim,
        "inputs": len(subject.inputs),
        "tokens": list(growth.tokens),
        "notes": list(opened.notes),
        "heads": {**weights.heads, "tokens on one side, share of heads and inputs": float(sides.mean())},
        "random_heads": weights.random,
        "layers": {**weights.predictors, **growth.outcomes},
    }


def samples(models: list[Data], outcome: str) -> list[Sample]:
    """Return the models with enough layers for which the outcome is defined."""
    good = [m["layers"] for m in models if m["layers"][outcome][0] is not None and len(m["layers"][outcome]) >= FEWEST]
    return [
        Sample(np.array(layers[outcome], dtype=np.float64), np.array([layers[name] for name in PREDICTORS]))
        for layers in good
    ]


def correlations(models: list[Data], name: str, seed: int, resamples: int) -> list[Data]:
    """Correlate every outcome with every predictor."""
    rows = []
    for outcome in OUTCOMES:
        chosen = samples(models, outcome)
        if not chosen:
            continue
        ranks = Ranks(chosen, seed, resamples)
        layers = sum(sample.layers for sample in chosen)
        for index, predictor in enumerate(PREDICTORS):
            row = {"model": name, "layers": layers, "outcome": outcome, "predictor": predictor}
            rows.append({**row, **asdict(ranks.correlation(index))})
    return rows


def differences(models: list[Data], seed: int, resamples: int) -> list[Data]:
    """Compare the predictors of the value with those of W and A."""
    rows, names = [], list(PREDICTORS)
    for outcome in OUTCOMES:
        chosen = samples(models, outcome)
        if not chosen:
            continue
        ranks = Ranks(chosen, seed, resamples)
        for predictor in VALUE_PREDICTORS:
            for other in OTHER_PREDICTORS:
                difference = ranks.difference(names.index(predictor), names.index(other))
                rows.append({"outcome": outcome, "predictor": predictor, "against": other, **asdict(difference)})
    return rows


HYPOTHESES = {
    "W positive": "W > 0",
    "A negative": "A < 0",
    "A positive": "A > 0",
    "value stable": "V stable",
    "collapse proved": "collapse",
    "divergence proved": "divergence",
}
SHOWN = {"stream": "stream across attention", "rate": "rate of the layer's flow", "block": "across the block"}


def summarise(data: Data) -> tuple[Table, ...]:
    """Return hypotheses by model, correlations of all models together, and the answers."""
    heads = [
        (
            model["name"],
            str(model["heads"]["heads"]),
            *(f"{model['heads'][key]} ({model['random_heads'][key]})" for key in HYPOTHESES),
        )
        for model in data["models"]
    ]
    ranks = [
        (name.replace("_", " "), part["group"], *(_format_correlation(data, name, key) for key in SHOWN))
        for name, part in data["predictors"].items()
    ]
    answers = tuple((f"{index + 1}", text) for index, text in enumerate(data["answers"]))
    return (
        Table(
            "heads that satisfy a hypothesis (in brackets: random heads of the same shapes)",
            ("model", "heads", *HYPOTHESES.values()),
            tuple(heads),
        ),
        Table(
            "rank correlations over layers, all models (*: p < 0.05 for all predictors together)",
            ("predictor", "of", *SHOWN),
            tuple(ranks),
        ),
        Table("answers", (), answers),
        Table("", (), (("models together", ", ".join(data["pooled_over"])),)),
    )


def _format_correlation(data: Data, predictor: str, outcome: str) -> str:
    for row in data["pooled"]:
        if (row["predictor"], row["outcome"]) == (predictor, outcome):
            return f"{row['rho']:.2f} [{row['low']:.2f}, {row['high']:.2f}]{'*' if row['family'] < LEVEL else ' '}"
    return "undefined"


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the correlations into ``path``, and growth along depth into a second file whose name ends in _layers."""
    layers = path.with_stem(f"{path.stem}_layers")
    return _draw_correlations(data, path), _draw_layers(data, layers)


def _draw_correlations(data: Data, path: Path) -> Path:
    from attractor.plotting import Interval, Rows, draw_intervals

    predictors = data["predictors"]
    panels = []
    for outcome, title in SHOWN.items():
        rows = _rows(data, outcome)
        if rows:
            panels.append(Rows(title, [Interval(row["rho"], row["low"], row["high"], row["null"]) for row in rows]))
    caption = (
        f"Spearman correlations over layers inside each model, averaged over {', '.join(data['pooled_over'])}; bars: 95% of "
        f"{format_number(data['resamples'])} resamples of layers; grey: 95% of permutations. The block is defined for pre-norm models. "
        f"Drawn by: {command_of(data)}"
    )
    return draw_intervals(
        [name.replace("_", " ") for name in predictors],
        [part["group"] for part in predictors.values()],
        panels,
        "Which spectra of weights rank layers by how much they lengthen tokens?",
        caption,
        "rank correlation",
        path,
    )


def _draw_layers(data: Data, path: Path) -> Path:
    from attractor.plotting import Curve, Panel, draw_panels

    models = data["models"]

    def depth(model: Data) -> list[float]:
        count = len(model["layers"]["stream"])
        return [(index + 0.5) / count for index in range(count)]

    measured = tuple(Curve(depth(model), model["layers"]["stream"]) for model in models)
    predicted = tuple(Curve(depth(model), model["layers"]["value_radius"]) for model in models)
    pairs = tuple(Curve(m["layers"]["value_radius"], m["layers"]["stream"], m["name"], dots=True) for m in models)
    panels = (
        Panel(measured, "depth", "log growth across attention"),
        Panel(predicted, "depth", "discrete radius of the value", log_y=True),
        Panel(pairs, "discrete radius of the value", "log growth across attention", log_x=True),
    )
    caption = (
        f"One curve per model, one point per layer; colours are the same in all panels. Drawn by: {command_of(data)}"
    )
    return draw_panels(
        panels, "Measured growth of norms, and the growth that the spectrum of the value predicts", caption, path
    )


def judge(data: Data) -> Verdict:
    """Return the answers: the paper has no such figure."""
    return Verdict("no published result", " ".join(f"{text[0].upper()}{text[1:]}." for text in data["answers"]))


def needed_weights(settings: Settings) -> tuple[str, ...]:
    """Return the models of a run."""
    return tuple(settings["models"] or MODELS)


FIGURE = Figure(
    key="practice",
    title="Theory and practice",
    question="Do heads of real models satisfy the hypotheses of collapse or divergence, and do spectra of weights rank layers by growth?",
    source="pham2025dynamical",
    parameters=(
        SEED,
        Parameter("models", (), f"names or paths of models; {', '.join(MODELS)} if empty"),
        Parameter(
            "file", "", "a file with one text per line for all models; the inputs of each model's domain if empty"
        ),
        Parameter("resamples", 2000, "resamples and permutations of layers", minimum=100),
    ),
    cost=300.0,
    compute=compute,
    draw=draw,
    summarise=summarise,
    verdict=judge,
    small={"models": ("stories15M",), "resamples": 100},
    extras=("plot", "checkpoints"),
    weights=needed_weights,
)
