"""Studies: arms, questions, rates and data sets, built in or read from TOML files."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.registry import check_name, unknown
from attractor.training.config import CHOICES, Config

Changes = dict[str, Any]
Pair = tuple[str, str]

ARM_KINDS: dict[str, Changes] = {
    "plain": {},
    "convergent": {"attention": "convergent", "equal": True},
    "intermediate": {"attention": "intermediate", "equal": True},
    "divergent": {"attention": "divergent", "equal": True},
    "relaxed": {"attention": "convergent", "relaxed": True, "equal": True},
    "slice+": {"refinement": "slice", "sign": "+"},
    "slice-": {"refinement": "slice", "sign": "-"},
    "slice-free": {"refinement": "slice", "sign": "free"},
    "shift": {"refinement": "shift", "sign": "free"},
    "shift+": {"refinement": "shift", "sign": "+"},
    "shift-": {"refinement": "shift", "sign": "-"},
    "diagonal": {"attention": "intermediate", "metric": "diagonal", "equal": True},
    "lambda-A": {"attention": "intermediate", "metric": "diagonal", "equal": True, "refinement": "metric"},
    "spectral": {"spectral": True},
    "temperature": {"temperature": "learned"},
    "cold": {"temperature": 0.5},
    "gain": {"gain": "learned"},
    "gain-half": {"gain": 0.5},
    "post": {"placement": "post"},
    "peri": {"placement": "peri"},
    "channels": {"attention": "intermediate", "signs": "channels", "equal": True},
    "scattered-convergent": {"attention": "convergent", "signs": "scattered", "equal": True},
    "scattered-intermediate": {"attention": "intermediate", "signs": "scattered", "equal": True},
    "bare-plain": {"placement": "none"},
    "bare-convergent": {"attention": "convergent", "placement": "none", "equal": True},
    "bare-intermediate": {"attention": "intermediate", "placement": "none", "equal": True},
    "bare-divergent": {"attention": "divergent", "placement": "none", "equal": True},
}
REGIMES = ("convergent", "intermediate", "divergent")
SLICES = ("slice+", "slice-", "slice-free", "shift")
ALTERNATIVES = ("spectral", "temperature", "gain", "post", "peri")


LOWER = {"bits_per_byte": True, "loss": True, "perplexity": True, "word_perplexity": True, "accuracy": False}


@dataclass(frozen=True)
class Tuning:
    """How rates are chosen: runs of every rate with seeds of their own, and ``steps`` instead of those of the study."""

    seeds: tuple[int, ...]
    steps: int | None = None


@dataclass(frozen=True)
class Study:
    """A comparison of arms.

    Attributes
    ----------
    base : entries of the configuration that all arms share.
    arms : names in the order in which they are run: "kind/positions", or those of ``entries``.
    questions : by question the pairs (arm, reference) that are tested together.
    measure, lower : score by which runs are judged, and whether lower is better.
    entries : entries of the configuration of arms with a name of their own.
    rates : grid of learning rates; empty for the one of the configuration.
    common_rate : rate at which all arms are compared, beside the best one of each.
    tuning : choice of the best rate; None trains every seed at every rate and chooses by their mean.
    data_sets : entries of the configuration for each of several data sets.
    seeds : seeds of the runs that are compared.
    text : source of a study that was read from a file.
    """

    name: str
    base: Changes
    arms: tuple[str, ...]
    questions: dict[str, tuple[Pair, ...]] = field(default_factory=dict)
    measure: str = "bits_per_byte"
    lower: bool = True
    entries: dict[str, Changes] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    common_rate: float | None = None
    tuning: Tuning | None = None
    data_sets: dict[str, Changes] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    text: str | None = None


TEXT: Changes = {
    "layers": 4,
    "dim": 256,
    "heads": 4,
    "context": 256,
    "batch": 64,
    "rate": 2e-3,
    "warmup": 100,
    "evaluations": 512,
}
IMAGES: Changes = {
    "task": "images",
    "layers": 6,
    "dim": 192,
    "heads": 3,
    "patch": 4,
    "batch": 256,
    "rate": 1e-3,
    "warmup": 100,
    "evaluations": 2048,
}


def _at(positions: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}/{positions}" for kind in kinds)


def _against(reference: str, *arms: str) -> tuple[Pair, ...]:
    return tuple((arm, reference) for arm in arms)


def _questions(main: str, other: str) -> dict[str, tuple[Pair, ...]]:
    """Return the questions of a study whose arms have ``main`` positions and, for some, ``other`` positions."""
    return {
        "regimes": (
            *_against(f"plain/{main}", *_at(main, *REGIMES)),
            (f"convergent/{main}", f"divergent/{main}"),
            (f"intermediate/{main}", f"divergent/{main}"),
        ),
        "positions": (
            ("plain/rotary", "plain/absolute"),
            ("plain/none", "plain/absolute"),
            ("plain/none", "plain/rotary"),
        ),
        "refinements": (
            *_against(f"plain/{main}", *_at(main, *SLICES)),
            *_against(f"plain/{other}", *_at(other, *SLICES)),
            (f"lambda-A/{main}", f"diagonal/{main}"),
            (f"lambda-A/{other}", f"diagonal/{other}"),
        ),
        "alternatives": _against(f"plain/{main}", *_at(main, *ALTERNATIVES)),
        "control": (
            (f"channels/{main}", f"intermediate/{main}"),
            (f"scattered-intermediate/{main}", f"intermediate/{main}"),
            (f"scattered-convergent/{main}", f"convergent/{main}"),
        ),
    }


CONTROLS = ("channels", "scattered-intermediate", "scattered-convergent")
EVERY = (
    *_at("rotary", "plain", *REGIMES),
    *_at("absolute", "plain"),
    *_at("none", "plain"),
    *_at("rotary", *SLICES),
    *_at("rotary", *CONTROLS),
    *_at("rotary", *ALTERNATIVES),
    *_at("absolute", *SLICES),
    *_at("rotary", "diagonal", "lambda-A"),
    *_at("absolute", "diagonal", "lambda-A"),
)
BARE = _at("rotary", "bare-plain", *(f"bare-{regime}" for regime in REGIMES))
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "bytes",
            {**TEXT, "steps": 1000, "evaluate": 125},
            (*EVERY, *_at("absolute", *REGIMES), *_at("none", *REGIMES), *BARE),
            {
                **_questions("rotary", "absolute"),
                "regimes with other positions": (
                    *_against("plain/absolute", *_at("absolute", *REGIMES)),
                    *_against("plain/none", *_at("none", *REGIMES)),
                ),
                "regimes without norms": _against("bare-plain/rotary", *BARE[1:]),
            },
        ),
        Study(
            "bpe",
            {**TEXT, "tokens": "bpe", "vocabulary": 4096, "steps": 600, "evaluate": 100},
            EVERY,
            _questions("rotary", "absolute"),
        ),
        Study(
            "vision",
            {**IMAGES, "steps": 1500, "evaluate": 250},
            tuple(name.replace("rotary", "?").replace("absolute", "rotary").replace("?", "absolute") for name in EVERY),
            _questions("absolute", "rotary"),
            measure="accuracy",
            lower=False,
        ),
    )
}


SHIPPED = Path(__file__).parent
TOP = ("name", "measure", "base", "seeds", "rates", "common_rate", "tuning", "data", "arms", "questions")


def list_studies() -> list[str]:
    """Return the names of the studies that come with attractor."""
    return [*STUDIES, *sorted(found.stem for found in SHIPPED.glob("*.toml"))]


def find_study(name: str) -> Study:
    """Return a study by its name, or from a TOML file."""
    if name in STUDIES:
        return STUDIES[name]
    shipped = SHIPPED / f"{name}.toml"
    path = shipped if shipped.is_file() else Path(name)
    if path.suffix == ".toml" and path.is_file():
        return read_study(path)
    if path.suffix == ".toml":
        raise InputError(f"the file {path} does not exist; give a TOML file, or one of {', '.join(list_studies())}")
    raise unknown(name, list_studies(), "study", "studies")


def read_study(path: Path) -> Study:
    """Read a study from a TOML file; relative paths of data refer to its folder if they exist there."""
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    for name in given:
        check_name(name, TOP, f"entry of {path}", "entries of a study")
    arms = _table(given, "arms", path)
    if len(arms) < 2:
        raise InputError(f"{path} has {len(arms)} arms in [arms]; a study compares at least two")
    data_sets = _data_sets(given, path)
    base = _entries(_table(given, "base", path), "[base]", path)
    entries = {arm: _arm(arm, value, path) for arm, value in arms.items()}
    task = base.get("task", "text")
    measure = given.get("measure", "accuracy" if task == "images" else "bits_per_byte")
    check_name(measure, LOWER, "measure")
    rates = tuple(sorted(_numbers(given.get("rates", []), "rates", path)))
    common = given.get("common_rate")
    if common is not None and common not in rates:
        raise InputError(f"{path}: common_rate {common!r} is not one of the rates {list(rates)}")
    return Study(
        name=str(given.get("name", path.stem)),
        base=base,
        arms=tuple(arms),
        questions=_pairs(_table(given, "questions", path), tuple(arms), path),
        measure=measure,
        lower=LOWER[measure],
        entries=entries,
        rates=rates,
        common_rate=common,
        tuning=_tuning(_table(given, "tuning", path), rates, path),
        data_sets=data_sets,
        seeds=_seeds(given.get("seeds", [0, 1, 2]), "seeds", path),
        text=text,
    )


def _table(given: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = given.get(name, {})
    if not isinstance(found, dict):
        raise InputError(f"{path}: {name} must be a table [{name}], got {found!r}")
    return found


def _entries(given: Any, where: str, path: Path) -> Changes:
    """Return entries of a configuration; raise for unknown ones."""
    if not isinstance(given, dict):
        raise InputError(f"{path}: {where} must be a table of entries of a configuration, got {given!r}")
    for name in given:
        check_name(name, (each.name for each in fields(Config)), f"entry of {where} in {path}", "entries")
    for name in ("data", "tokenizer"):
        if name in given and (path.parent / str(given[name])).exists():
            given = {**given, name: str(path.parent / str(given[name]))}
    return dict(given)


def _arm(arm: str, given: Any, path: Path) -> Changes:
    """Return the entries of an arm, given as a table or as "kind/positions"."""
    if isinstance(given, str):
        kind, _, positions = given.partition("/")
        check_name(kind, ARM_KINDS, f"kind of the arm {arm!r} in {path}:", "kinds")
        check_name(positions, CHOICES["positions"], f"positions of the arm {arm!r} in {path}:", "positions")
        return {**ARM_KINDS[kind], "positions": positions}
    return _entries(given, f"[arms] {arm}", path)


def _data_sets(given: Mapping[str, Any], path: Path) -> dict[str, Changes]:
    found = given.get("data", {})
    if isinstance(found, str):
        return {"": _entries({"data": found}, "data", path)}
    named = {
        name: _entries({"data": value} if isinstance(value, str) else value, f"[data] {name}", path)
        for name, value in _table(given, "data", path).items()
    }
    without = [name for name, entries in named.items() if "data" not in entries]
    if without:
        raise InputError(f"{path}: [data] {without[0]} does not say what to read: give a path, or data = in its table")
    return named


def _numbers(given: Any, name: str, path: Path) -> list[float]:
    right = isinstance(given, list) and all(
        isinstance(one, (int, float)) and not isinstance(one, bool) and 0 < one < math.inf for one in given
    )
    if not right or len(set(given)) < len(given):
        raise InputError(f"{path}: {name} must be a list of different positive numbers, got {given!r}")
    return [float(one) for one in given]


def _seeds(given: Any, name: str, path: Path) -> tuple[int, ...]:
    right = isinstance(given, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in given
    )
    if not right or not given or len(set(given)) < len(given):
        raise InputError(f"{path}: {name} must be a list of different whole numbers of at least 0, got {given!r}")
    return tuple(given)


def _tuning(given: dict[str, Any], rates: tuple[float, ...], path: Path) -> Tuning | None:
    if not given:
        return None
    for name in given:
        check_name(name, ("seeds", "steps"), f"entry of [tuning] in {path}", "entries")
    if not rates:
        raise InputError(f"{path}: [tuning] chooses among rates, and there are none: give rates = [1e-3, 2e-3], say")
    steps = given.get("steps")
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise InputError(f"{path}: steps of [tuning] must be a whole number of at least 1, got {steps!r}")
    return Tuning(_seeds(given.get("seeds"), "seeds of [tuning]", path), steps)


def _pairs(given: dict[str, Any], arms: tuple[str, ...], path: Path) -> dict[str, tuple[Pair, ...]]:
    """Return the pairs of every question; without questions every arm is compared with the first one."""
    if not given:
        return {"arms": tuple((arm, arms[0]) for arm in arms[1:])}
    found: dict[str, tuple[Pair, ...]] = {}
    for question, pairs in given.items():
        right = isinstance(pairs, list) and all(
            isinstance(pair, list) and len(pair) == 2 and pair[0] != pair[1] for pair in pairs
        )
        if not right or not pairs:
            raise InputError(
                f"{path}: question {question!r} must be a list of pairs of two arms, such as "
                f'[["{arms[1]}", "{arms[0]}"]], got {pairs!r}'
            )
        for name in (name for pair in pairs for name in pair):
            check_name(name, arms, f"question {question!r} of {path}: arm", "arms")
        found[question] = tuple((pair[0], pair[1]) for pair in pairs)
    return found


def arm_entries(study: Study, arm: str, data_set: str = "") -> Changes:
    """Return the entries of the configuration of an arm."""
    if arm in study.entries:
        own = study.entries[arm]
    else:
        kind, _, positions = arm.partition("/")
        if study.entries or kind not in ARM_KINDS or positions not in ("none", "absolute", "rotary"):
            raise unknown(arm, study.arms, "arm", f"arms of {study.name}")
        own = {**ARM_KINDS[kind], "positions": positions}
    return {**study.base, **study.data_sets.get(data_set, {}), **own}
