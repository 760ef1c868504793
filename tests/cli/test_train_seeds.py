"""``attractor train --resume FOLDER``: as the runs began, of several seeds none is forgotten, and what is damaged is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attractor.cli.train import TrainOptions, check_folders, named_entries, plan_runs, record_seeds
from attractor.errors import InputError, StoreError
from attractor.training import read_config
from attractor.training.run_folder import RunFolder


def stopped(folders: list[Path], begin: bool) -> None:
    """A run of several seeds that ends before the second."""
    config = read_config("tiny", seed=10, data="README.md")
    with record_seeds([(config, folder) for folder in folders], folders[0].parent / "data"):
        assert json.loads((folders[0].parent / "seeds.json").read_text())["seeds"] == [10]
        if begin:
            RunFolder(folders[0]).create(config)
        raise KeyboardInterrupt


def test_seeds_that_had_not_begun_are_not_forgotten(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped([tmp_path / "seed10", tmp_path / "seed2"], begin=True)
    (tmp_path / "seeds.json").write_text("[10, 2, 3]")
    options = TrainOptions(resume=tmp_path)
    runs = plan_runs(options)
    assert [(found.seed, folder.name) for found, folder in runs] == [(10, "seed10"), (2, "seed2"), (3, "seed3")]
    assert runs[0][0] == read_config("tiny", seed=10, data="README.md")
    assert check_folders(runs, options) == [True, False, False]


def test_damaged_records_of_seeds_are_found(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped([tmp_path / "seed10", tmp_path / "seed2"], begin=True)
    record = (tmp_path / "seeds.json").read_bytes()
    runs, rejected = plan_runs(TrainOptions(resume=tmp_path)), 0
    for place in range(len(record)):
        for bit in (0x01, 0x10):
            damaged = bytearray(record)
            damaged[place] ^= bit
            (tmp_path / "seeds.json").write_bytes(bytes(damaged))
            try:
                found = plan_runs(TrainOptions(resume=tmp_path))
            except StoreError as error:
                assert "seeds.json is damaged" in str(error)  # noqa: PT017
                rejected += 1
            else:  # white space that is another
                assert found == runs
                assert json.loads(damaged) == json.loads(record)
    assert rejected > 1.9 * len(record)


def test_where_no_run_begins_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped([tmp_path / "a" / "runs" / "seed10"], begin=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ['{"nosuch": 1}', "[1]", '{"steps": "many"}'])
def test_a_damaged_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(StoreError, match=r"no run that could be resumed: its config\.json is damaged"):
        plan_runs(TrainOptions(resume=tmp_path))


SET = ["attention=divergent", "betas=[0.9, 0.99]"]
CHANGED: dict[str, Any] = {"attention": "divergent", "betas": (0.9, 0.99)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Begun with ``tiny --data README.md --steps 7 --set ...``."""
    options = TrainOptions(config="tiny", data="README.md", steps=7, change=SET, out=tmp_path / "run")
    [(config, folder)] = runs = plan_runs(options)
    RunFolder(folder).create(config, named_entries(runs, options))
    return folder


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"config": "tiny"},
        {"change": ["betas=[0.9,0.99]"]},
        {"config": "tiny", "change": [*SET, "dim=32", "rate=0.001"], "steps": 7, "seed": 0},
        {"config": "tiny", "data": str(Path("README.md").resolve())},
    ],
)
def test_a_run_goes_on_as_it_began(given: dict[str, Any], run: Path) -> None:
    [(config, folder)] = plan_runs(TrainOptions(resume=run, **given))
    assert (config, folder) == (read_config("tiny", data="README.md", steps=7, **CHANGED), run)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"change": ["attention=plain"]},
            r"attention \('divergent' there, 'plain' here\); --resume FOLDER alone continues",
        ),
        ({"config": "tiny", "change": ["dim=64"]}, r"another configuration: dim \(32 there, 64 here\)"),
        ({"steps": 8}, r"steps \(7 there, 8 here\)"),
        ({"seed": 1}, r"seed \(0 there, 1 here\)"),
        ({"config": "tiny-vit"}, r"another configuration: .*task \('text' there, 'images' here\)"),
        ({"change": ["atention=plain"]}, "there is no entry 'atention'; the entries are accumulate, attention"),
        ({"seeds": "0,1"}, "holds one run and no folders of seeds"),
    ],
)
def test_what_differs_from_the_run_is_refused(given: dict[str, Any], words: str, run: Path) -> None:
    with pytest.raises(InputError, match=words):
        plan_runs(TrainOptions(resume=run, **given))


def test_seeds_are_asked_one_by_one(run: Path) -> None:
    run.rename(run.with_name("seed0"))
    runs = plan_runs(TrainOptions(config="tiny", resume=run.parent, seeds="0,5"))
    assert [(config.seed, config.attention, folder.name) for config, folder in runs] == [
        (0, "divergent", "seed0"),
        (5, "divergent", "seed5"),
    ]
    assert named_entries(runs, TrainOptions(resume=run.parent)) == ["attention", "betas", "data", "steps"]
    with pytest.raises(InputError, match=r"seed0 has another configuration: heads \(2 there, 4 here\)"):
        plan_runs(TrainOptions(resume=run.parent, change=["heads=4"]))


def test_a_run_of_an_earlier_version_is_compared_with_all_of_its_file(run: Path) -> None:
    (run / "changed.json").unlink()
    assert plan_runs(TrainOptions(resume=run))[0][0].attention == "divergent"
    with pytest.raises(InputError, match=r"attention \('divergent' there, 'plain' here\)"):
        plan_runs(TrainOptions(config="tiny", data="README.md", steps=7, resume=run))
