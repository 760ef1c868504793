"""Colours by which the eye follows tokens: where they end, where they start, or which they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attractor.errors import InputError
from attractor.pictures import style
from attractor.pictures.grouping import groups
from attractor.pictures.projection import Projection

RULES = ("auto", "cluster", "start", "index")
# Tokens chained by steps of a twentieth of the space's size end together, if their cluster is this compact.
REACH, COMPACT = 0.05, 0.35


@dataclass(frozen=True, eq=False)
class Colours:
    """One colour per token (n, 3), the cluster of each token if that is what they show, and the words for the caption."""

    tokens: np.ndarray
    clusters: np.ndarray | None
    legend: str


def colour_tokens(projection: Projection, masses: np.ndarray, rule: str = "auto") -> Colours:
    """By final cluster when there are two to seven of them, otherwise by starting place."""
    if rule not in RULES:
        raise InputError(f"colour {rule!r} is not known; give one of {', '.join(RULES)}")
    n = masses.size
    if rule == "index" or (rule == "auto" and n <= len(style.PALETTE)):
        return by_index(n)
    clusters = final_clusters(projection.bodies[-1], masses)
    count = int(clusters.max()) + 1
    few = 1 < count <= len(style.PALETTE) and compact(projection.bodies[-1], clusters)
    if rule == "cluster" or (rule == "auto" and few):
        palette = np.array([style.rgb(colour) for colour in style.PALETTE])
        colours = palette[clusters % len(palette)]
        return Colours(colours, clusters, "Colour: the cluster a token ends in.")
    return by_start(projection)


def by_index(n: int) -> Colours:
    if n == 1:
        return Colours(style.rgb(style.PALETTE[0])[None], None, "")
    if n <= len(style.PALETTE):
        return Colours(np.array([style.rgb(c) for c in style.PALETTE[:n]]), None, "Colour: one for each token.")
    return Colours(style.ramp(np.arange(n) / (n - 1)), None, "Colour: the token's index.")


def by_start(projection: Projection) -> Colours:
    """Longitude on the first two drawn axes, or rank on a line."""
    start = projection.coordinates[0]
    if start.shape[1] == 1:
        rank = np.argsort(np.argsort(start[:, 0], kind="stable"), kind="stable")
        return Colours(style.ramp(rank / max(len(rank) - 1, 1)), None, "Colour: the order in which tokens start.")
    centre = np.zeros(start.shape[1]) if projection.surface is not None else start.mean(axis=0)
    longitude = np.arctan2(start[:, 1] - centre[1], start[:, 0] - centre[0])
    word = "longitude" if start.shape[1] == 3 else "angle"
    return Colours(style.wheel(longitude / (2 * np.pi)), None, f"Colour: the {word} a token starts at.")


def final_clusters(bodies: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Labels (n,) of the clusters of a state, the heaviest first."""
    labels = groups(bodies, REACH)
    weights = np.bincount(labels, weights=masses)
    rank = np.empty(weights.size, dtype=int)
    rank[np.argsort(-weights, kind="stable")] = np.arange(weights.size)
    return rank[labels]


def compact(bodies: np.ndarray, clusters: np.ndarray) -> bool:
    """True when every cluster is small: a chain that winds over the whole space is no cluster."""
    counts = np.bincount(clusters)
    centres = np.stack([np.bincount(clusters, weights=column) / counts for column in bodies.T], axis=1)
    return bool(np.linalg.norm(bodies - centres[clusters], axis=1).max() < COMPACT)
