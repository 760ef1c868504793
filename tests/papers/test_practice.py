"""Theory against practice: statistics against scipy, measurements against the definition, and the command end to end."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import attractor as at
from attractor.cli.main import run
from attractor.errors import InputError
from attractor.papers import practice
from attractor.papers.practice import ANTIBODIES, REACTIONS, SMILES, Subject
from attractor.papers.rank_correlation import Ranks, Sample, spearman

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from small_models import random_model


def test_rank_correlations_are_scipys() -> None:
    draw = np.random.default_rng(0)
    for _ in range(5):
        first, second = draw.integers(0, 6, (2, 12)).astype(float)
        expected: Any = stats.spearmanr(first, second)
        assert spearman(first, second) == pytest.approx(expected.statistic, abs=1e-12)
    assert spearman(np.ones(5), np.arange(5.0)) == 0.0


def sample(draw: np.random.Generator, layers: int, strength: float) -> Sample:
    """The first predictor follows the outcome, the second does not."""
    outcome = draw.normal(size=layers)
    return Sample(outcome, np.stack((strength * outcome + draw.normal(size=layers), draw.normal(size=layers))))


def test_a_relation_is_found_and_noise_is_not() -> None:
    draw = np.random.default_rng(1)
    ranks = Ranks([sample(draw, 30, 3.0), sample(draw, 12, 3.0)], seed=0, resamples=500)
    true, noise = ranks.correlation(0), ranks.correlation(1)
    assert true.low > 0.5 > 0
    assert true.p == pytest.approx(1 / 501)
    assert noise.low < 0 < noise.high
    assert noise.p > 0.05
    assert ranks.difference(0, 1).low > 0 > ranks.difference(1, 0).high


def test_p_values_of_noise_are_uniform() -> None:
    draw = np.random.default_rng(2)
    found = [Ranks([sample(draw, 8, 0.0)], seed=k, resamples=200).correlation(0) for k in range(120)]
    assert stats.kstest([one.p for one in found], "uniform").pvalue > 0.01
    assert np.mean([one.family for one in found]) > np.mean([one.p for one in found])


def test_the_permutation_test_is_exact_for_few_layers() -> None:
    """Four layers in perfect order: two of 24 orders are as extreme."""
    ranks = Ranks([Sample(np.arange(4.0), np.arange(4.0)[None])], seed=0, resamples=4000)
    assert ranks.correlation(0).p == pytest.approx(2 / 24, abs=0.02)


def test_what_depth_explains_is_taken_out() -> None:
    """Two curves that both rise with depth: correlated, but not given depth, and turning one round tells little against it."""
    draw = np.random.default_rng(3)
    depth = np.arange(24.0)
    one, other = (depth + draw.normal(0, 3, 24) for _ in range(2))
    found = Ranks([Sample(one, other[None])], seed=0, resamples=500).correlation(0)
    assert found.rho > 0.8
    assert abs(found.given_depth) < 0.4
    assert found.p < 0.01 < found.p_shift
    ranks = [stats.rankdata(part) for part in (one, other, depth)]
    left = [np.polyval(np.polyfit(ranks[2], part, 1), ranks[2]) - part for part in ranks[:2]]
    assert found.given_depth == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-9)


@pytest.mark.parametrize("case", ["Llama, grouped", "BERT, MiniLM"])
def test_growth_is_what_the_model_does(case: str) -> None:
    """Against the whole model with hooks of our own on its attention."""
    model: Any = random_model(case).eval()
    opened = at.checkpoint(model)
    ids = [3, 5, 7, 9, 11, 4]
    found = practice.measure_growth(Subject("small", opened, (ids,), "small"))
    blocks = model.layers if case.startswith("Llama") else model.encoder.layer
    before: list[torch.Tensor] = []
    wrote: list[torch.Tensor] = []
    for block in blocks:
        writes = block.self_attn.o_proj if case.startswith("Llama") else block.attention.output.dense
        block.register_forward_pre_hook(lambda _, given: before.append(given[0][0].double()))
        writes.register_forward_hook(lambda _, __, out: wrote.append(out[0].double()))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    for layer, (x, a) in enumerate(zip(before, wrote, strict=True)):
        expected = math.log(float((x + a)[1:].norm() / x[1:].norm()))
        assert found.outcomes["stream"][layer] == pytest.approx(expected, abs=1e-4)
    assert (found.outcomes["block"][0] is None) == (case == "BERT, MiniLM")
    assert found.tokens == (6,)


def test_one_sided_tokens_are_recognised() -> None:
    """u is a left eigenvector of the d x d value with a positive eigenvalue; tokens built around u lie on one side of it."""
    layer = at.checkpoint(random_model("Llama, grouped")).layers[0]
    law: Any = layer.head(1, fold=True)
    values, vectors = torch.linalg.eig(law.value_map.mT)
    good = (values.imag.abs() < 1e-9) & (values.real > 1e-3 * values.abs().max())
    u = vectors[:, good][:, 0].real
    noise = torch.randn(12, len(u), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    aside = noise - (noise @ u)[:, None] * u
    assert practice.is_one_sided(layer, 1, aside + u)
    assert not practice.is_one_sided(layer, 1, torch.cat((noise, -noise)))


def test_predictors_are_those_of_the_full_matrices() -> None:
    opened = at.checkpoint(random_model("GPT-2"))
    law: Any = opened.layers[1].law(fold=True)
    found = practice.compute_predictors(law, [])
    total = (law.output @ law.value).sum(0)
    eigenvalues = torch.linalg.eigvals(total)
    interaction = law.scale * (law.query.mT @ law.key).sum(0)
    sizes = torch.linalg.eigvalsh((interaction + interaction.mT) / 2)
    assert found["value_abscissa"] == pytest.approx(float(eigenvalues.real.max()), rel=1e-8)
    assert found["value_radius"] == pytest.approx(float((1 + eigenvalues).abs().max()), rel=1e-8)
    assert found["value_mean"] == pytest.approx(float(eigenvalues.real.mean()), rel=1e-8)
    assert found["interaction_high"] == pytest.approx(float(sizes[-1]), rel=1e-8)
    assert found["interaction_index"] == pytest.approx(float(sizes.sum() / sizes.abs().sum()), rel=1e-7)
    assert set(found) == set(practice.PREDICTORS)


def test_one_model_of_a_lineage_counts() -> None:
    models = [
        {"name": name, "lineage": name[0], "layers": {"size": [0.0] * n}}
        for name, n in (("a1", 9), ("a2", 9), ("b", 3))
    ]
    assert [model["name"] for model in practice.first_of_each_lineage(models)] == ["a1"]


def test_inputs_are_split_into_what_the_models_read() -> None:
    assert SMILES.findall("[O-]c1Brc>>Cl") == ["[O-]", "c", "1", "Br", "c", ">>", "Cl"]
    assert all(">>" in SMILES.findall(reaction) for reaction in REACTIONS)
    assert all(set(sequence) <= set("ACDEFGHIKLMNPQRSTVWY") for sequence in ANTIBODIES)


def test_names_are_known_however_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = at.checkpoint(random_model("Llama, grouped"))
    monkeypatch.setattr(practice, "checkpoint", lambda name: opened)
    (found,) = practice.open_subjects(("STORIES15m",))
    assert (found.name, found.lineage, found.inputs) == ("stories15M", "stories15M", practice.STORIES)


def test_antibodies_are_read_with_the_vocabulary_beside_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = random_model("BERT, MiniLM")
    model.save_pretrained(tmp_path)
    words = ["[PAD]", "[CLS]", "[SEP]", *"ACDEFGHIKLMNPQRSTVWY"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    monkeypatch.setattr(practice, "checkpoint", lambda name: at.checkpoint(tmp_path))
    (found,) = practice.open_subjects(("AntiBERTy",))
    assert [len(ids) for ids in found.inputs] == [len(sequence) + 2 for sequence in ANTIBODIES]
    assert found.inputs[0][:2] == [1, words.index("E")]


def test_a_text_that_cannot_be_read_is_named() -> None:
    opened = at.checkpoint(random_model("Llama, grouped"))
    with pytest.raises(InputError, match="text 2 for small: the text has 1 token"):
        practice.measure_growth(Subject("small", opened, ([3, 5], [7]), "small"))


def test_the_command_with_a_random_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random model of six layers that reads ids."""
    model: Any = random_model("Llama, grouped", num_hidden_layers=6)
    opened = at.checkpoint(model)
    subject = Subject("random", opened, ([3, 5, 7, 9], [8, 6, 4, 2]), "random")
    monkeypatch.setattr(practice, "open_subjects", lambda names, texts: [subject])
    files = ["--plot", str(tmp_path / "ranks.png"), "--out", str(tmp_path / "all")]
    assert run(["reproduce", "practice", "--json", "--set", "resamples=200", "--set", "models=random", *files]) == 0
    document = json.loads(capsys.readouterr().out)
    data = document["data"]
    assert data["models"][0]["heads"]["heads"] == 24
    assert len(data["pooled"]) == len(practice.OUTCOMES) * len(practice.PREDICTORS)
    assert data["answers"] == practice.answer_questions(data)
    assert "24 heads 0 meet" in data["answers"][0]
    assert document["outputs"]["figures"] == [str(tmp_path / "ranks.png"), str(tmp_path / "ranks_layers.png")]
    assert all(Path(path).stat().st_size > 1000 for path in document["outputs"]["figures"])
    stored = json.loads((tmp_path / "all" / "practice" / "data.json").read_text())
    assert stored["data"] == data
    assert (tmp_path / "all" / "practice" / "figure_layers.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "models=minilm", "--set", "file=no-such-file"], "is not a file that can be read"),
        (["--set", "resamples=10"], "resamples must be at least 100"),
        (["--set", "models=./no/such/model"], "no file or folder"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "practice", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
