"""``attractor train --resume FOLDER`` of several seeds: none is forgotten, and what is damaged is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attractor.cli.train import TrainOptions, check_folders, listed, planned
from attractor.errors import StoreError
from attractor.experiments.training import read_config
from attractor.experiments.training.folder import RunFolder


def stopped(folders: list[Path], begin: bool) -> None:
    """A run of several seeds that ends before the second."""
    config = read_config("tiny", seed=10, data="README.md")
    with listed([(config, folder) for folder in folders], folders[0].parent / "data"):
        assert json.loads((folders[0].parent / "seeds.json").read_text()) == [10]
        if begin:
            RunFolder(folders[0]).begin(config)
        raise KeyboardInterrupt


def test_seeds_that_had_not_begun_are_not_forgotten(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped([tmp_path / "seed10", tmp_path / "seed2"], begin=True)
    (tmp_path / "seeds.json").write_text("[10, 2, 3]")
    options = TrainOptions(resume=tmp_path)
    runs = planned(options)
    assert [(found.seed, folder.name) for found, folder in runs] == [(10, "seed10"), (2, "seed2"), (3, "seed3")]
    assert runs[0][0] == read_config("tiny", seed=10, data="README.md")
    assert check_folders(runs, options) == [True, False, False]


def test_where_no_run_begins_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped([tmp_path / "a" / "runs" / "seed10"], begin=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ['{"nosuch": 1}', "[1]", '{"steps": "many"}'])
def test_a_damaged_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(StoreError, match=r"no run that could be resumed: its config\.json is damaged"):
        planned(TrainOptions(resume=tmp_path))
