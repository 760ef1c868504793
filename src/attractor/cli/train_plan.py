"""Which runs ``attractor train`` makes or goes on with: a configuration and a folder for each."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.cli.files import check_folder_to_make
from attractor.errors import InputError, StoreError

if TYPE_CHECKING:
    from attractor.cli.train import TrainOptions

SEEDS = "seeds.json"  # in the folder of a run of several


def planned(options: TrainOptions) -> list[tuple[Any, Path]]:
    """A configuration and a folder for each run."""
    from attractor.experiments.training import read_config

    if (options.out is None) == (options.resume is None):
        raise InputError("give --out FOLDER for a new run or --resume FOLDER to go on with one")
    if options.seed is not None and options.seeds is not None:
        raise InputError("--seed is for one run and --seeds for several: give one of them")
    given, seeds = changes(options), _listed_seeds(options.seeds)
    if options.resume is not None:
        return begun(options.resume, options.config, given, seeds)
    assert options.out is not None
    if options.config is None:
        raise InputError("name a CONFIG for a new run: a TOML file, or one that comes along, such as tiny")
    if seeds is None:
        return [(read_config(options.config, **given), options.out)]
    return [(read_config(options.config, **given | {"seed": seed}), options.out / f"seed{seed}") for seed in seeds]


def changes(options: TrainOptions) -> dict[str, Any]:
    """Entries that are given beside CONFIG."""
    named = {"data": options.data, "steps": options.steps, "seed": options.seed}
    return changed(options.change or []) | {name: value for name, value in named.items() if value is not None}


def begun(resume: Path, config: str | None, given: dict[str, Any], seeds: list[int] | None) -> list[tuple[Any, Path]]:
    """The run in a folder, or those of its seeds, with the configurations that they began with; what is given again must agree."""
    from attractor.experiments.training import read_config
    from attractor.experiments.training.folder import RunFolder

    runs = _stored(resume, seeds)
    # entries that were set beside the file when a run began are not the file's to say
    before = {*(name for _, folder in runs for name in RunFolder(folder).changed()), "seed"}
    for stored, folder in runs:
        row = stored.row()
        unknown = sorted(given.keys() - row.keys())
        if unknown:
            raise InputError(f"a run does not know an entry {unknown[0]!r}; it knows {', '.join(sorted(row))}")
        _agree(row, given, folder)
        if config is not None:
            kept = {name: getattr(stored, name) for name in before}
            _agree(row, read_config(config, **kept | given).row(), folder)
    return runs


def _stored(resume: Path, seeds: list[int] | None) -> list[tuple[Any, Path]]:
    """Runs by the configurations in their folders; seeds that had not begun are as those that had."""
    from attractor.experiments.training.folder import RunFolder

    if RunFolder(resume).begun():
        if seeds is not None:
            raise InputError(f"{resume} holds one run and no folders of seeds: leave out --seeds")
        return [(_config(resume), resume)]
    found = {_number(file.parent): _config(file.parent) for file in resume.glob("seed*/config.json")}
    if seeds is not None and not found.keys() & set(seeds):
        named = ",".join(str(seed) for seed in seeds)
        raise StoreError(f"{resume} holds no run of the seeds {named} that could be resumed")
    if not found:
        raise StoreError(f"{resume} holds no run that could be resumed: it has no readable config.json")
    first = next(iter(found.values()))
    wanted = dict.fromkeys([*_seeds(resume), *sorted(found)]) if seeds is None else seeds
    return [(found.get(seed) or replace(first, seed=seed), resume / f"seed{seed}") for seed in wanted]


def _agree(stored: dict[str, Any], given: dict[str, Any], folder: Path) -> None:
    """Refuse entries that the run does not have."""
    other = [name for name, value in sorted(given.items()) if not _same(name, stored[name], value)]
    if other:
        named = ", ".join(f"{name} ({stored[name]!r} there, {given[name]!r} here)" for name in other)
        raise InputError(
            f"the run in {folder} has another configuration: {named}; --resume FOLDER alone goes on with it as it began"
        )


def _same(name: str, stored: Any, given: Any) -> bool:
    if name in ("data", "tokenizer") and isinstance(stored, str) and isinstance(given, str):
        return stored == given or Path(stored).resolve() == Path(given).resolve()
    return stored == (list(given) if isinstance(given, tuple) else given)


def _listed_seeds(given: str | None) -> list[int] | None:
    if given is None:
        return None
    try:
        return list(dict.fromkeys(int(seed) for seed in given.split(",")))
    except ValueError:
        raise InputError(f"--seeds {given} is not a list of whole numbers: write --seeds 0,1,2") from None


def _config(folder: Path) -> Any:
    """The configuration that a run began with."""
    from attractor.experiments.training.config import Config
    from attractor.experiments.training.folder import RunFolder

    try:
        return Config(**RunFolder(folder).config())
    except (TypeError, InputError) as error:
        raise StoreError(f"{folder} holds no run that could be resumed: its config.json is damaged ({error})") from None


def _number(folder: Path) -> int:
    try:
        return int(folder.name.removeprefix("seed"))
    except ValueError:
        raise StoreError(f"{folder} is not the folder of a seed, which are named seed0, seed1 and so on") from None


def _seeds(folder: Path) -> list[int]:
    """The seeds that a run of several was to have, in their order."""
    try:
        return [int(seed) for seed in json.loads((folder / SEEDS).read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise StoreError(f"{folder / SEEDS} is damaged: name the CONFIG and --seeds of the run") from None


@contextmanager
def listed(runs: list[tuple[Any, Path]], cache: Path | None) -> Iterator[None]:
    """The list of all seeds beside their folders, so that those that have not begun are not forgotten; none if no run begins."""
    from attractor.experiments.training.folder import RunFolder

    if cache is None or os.environ.get("RANK", "0") != "0":
        yield
        return
    place = cache.parent / SEEDS
    new = [folder for folder in (cache.parent, *cache.parent.parents) if not folder.exists()]
    cache.parent.mkdir(parents=True, exist_ok=True)
    seeds = dict.fromkeys([*_seeds(cache.parent), *(config.seed for config, _ in runs)])
    place.write_text(json.dumps([*seeds]) + "\n", encoding="utf-8")
    try:
        yield
    except BaseException:
        if not any(RunFolder(folder).begun() for _, folder in runs):
            with suppress(OSError):
                place.unlink()
                for folder in new:
                    folder.rmdir()
        raise


def check_folders(runs: list[tuple[Any, Path]], options: TrainOptions) -> list[bool]:
    """Which runs go on; refuses folders before any of them is trained. Of several seeds some may not have begun when all were stopped."""
    from attractor.experiments.training.folder import RunFolder

    folders = [RunFolder(folder) for _, folder in runs]
    if options.resume is None:
        for folder in folders:
            check_folder_to_make(folder.path, "--out")
            folder.check_new()
        return [False] * len(runs)
    return [folder.begun() for folder in folders]


def named_entries(runs: list[tuple[Any, Path]], options: TrainOptions) -> list[str]:
    """Entries that were set beside CONFIG, now or when a run that goes on began: what a run that begins keeps in its folder."""
    from attractor.experiments.training.folder import RunFolder

    before = (RunFolder(folder).changed() for _, folder in runs if options.resume is not None)
    return sorted({*changes(options), *(name for names in before for name in names)})


def changed(given: list[str]) -> dict[str, Any]:
    """Entries as TOML has them; a word that is none there is itself."""
    found: dict[str, Any] = {}
    for entry in given:
        name, sign, value = entry.partition("=")
        if not sign or not name.strip():
            raise InputError(f"--set {entry} is not of the form NAME=VALUE, such as --set attention=divergent")
        try:
            found[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found
