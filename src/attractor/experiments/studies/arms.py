"""What the studies compare: arms, each a change of one base, and the pairs of arms that answer a question.

An arm is named KIND/POSITIONS. Arms of one study have the same data, steps, seeds and schedule; arms with fewer attention parameters have a
wider feed-forward part, so that all have as many as plain attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attractor.errors import InputError

Changes = dict[str, Any]
Pair = tuple[str, str]

KINDS: dict[str, Changes] = {
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


@dataclass(frozen=True)
class Study:
    """A base, arms in the order in which they are run, and by question the pairs (arm, reference) that are tested together."""

    name: str
    base: Changes
    arms: tuple[str, ...]
    questions: dict[str, tuple[Pair, ...]] = field(default_factory=dict)
    measure: str = "bits_per_byte"
    lower: bool = True


TEXT: Changes = {"layers": 4, "dim": 256, "heads": 4, "context": 256, "batch": 64, "rate": 2e-3, "warmup": 100}
IMAGES: Changes = {
    "task": "images",
    "layers": 6,
    "dim": 192,
    "heads": 3,
    "patch": 4,
    "batch": 256,
    "rate": 1e-3,
    "warmup": 100,
}


def _at(positions: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}/{positions}" for kind in kinds)


def _against(reference: str, *arms: str) -> tuple[Pair, ...]:
    return tuple((arm, reference) for arm in arms)


def _questions(main: str, other: str) -> dict[str, tuple[Pair, ...]]:
    """The questions of a study whose arms stand at ``main`` and, for some, at ``other`` positions."""
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


def study_named(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise InputError(f"study {name!r} is not known; the studies are {', '.join(STUDIES)}")
    return STUDIES[name]


def changes_of(study: Study, arm: str) -> Changes:
    """The entries of the configuration of an arm."""
    kind, _, positions = arm.partition("/")
    if kind not in KINDS or positions not in ("none", "absolute", "rotary"):
        raise InputError(f"arm {arm!r} is not known; the study {study.name} has {', '.join(study.arms)}")
    return {**study.base, **KINDS[kind], "positions": positions}
