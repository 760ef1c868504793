"""The sphere and the ellipsoid as geometry: silhouette, shading, meridians and parallels."""

from __future__ import annotations

import numpy as np

from attractor.pictures import style
from attractor.pictures.camera import Camera
from attractor.pictures.projection import root

LIGHT = np.array([-0.38, 0.52, 0.77])


def silhouette(surface: np.ndarray, camera: Camera, count: int = 181) -> np.ndarray:
    """Outline (count, 2) on the picture of {x : x'Mx = 1}; in the plane, the curve itself."""
    inverse = np.linalg.inv(surface)
    if len(surface) == 3:
        inverse = camera.frame[:2] @ inverse @ camera.frame[:2].T
    angles = np.linspace(0.0, 2 * np.pi, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) @ root(inverse, 0.5)


def shading(surface: np.ndarray, camera: Camera, reach: float, pixels: int = 220) -> np.ndarray:
    """Picture (pixels, pixels, 3) of the lit surface on the square [-reach, reach]^2, row 0 at the bottom.

    In camera coordinates the front of the surface above (a, b) is the larger root c of the quadratic (a, b, c) M (a, b, c)' = 1
    and the normal is M (a, b, c).
    """
    matrix = camera.frame @ surface @ camera.frame.T
    a, b = np.meshgrid(*[np.linspace(-reach, reach, pixels)] * 2)
    linear = matrix[0, 2] * a + matrix[1, 2] * b
    constant = matrix[0, 0] * a * a + 2 * matrix[0, 1] * a * b + matrix[1, 1] * b * b - 1.0
    c = (np.sqrt(np.maximum(linear**2 - matrix[2, 2] * constant, 0.0)) - linear) / matrix[2, 2]
    normals = np.stack([a, b, c], axis=2) @ matrix
    normals /= np.maximum(np.linalg.norm(normals, axis=2, keepdims=True), 1e-300)
    lit = np.clip(normals @ (LIGHT / np.linalg.norm(LIGHT)), 0.0, 1.0)[..., None] ** 0.8
    return style.rgb(style.GLOBE_SHADE) * (1 - lit) + style.rgb(style.GLOBE_LIGHT) * lit


def graticule(surface: np.ndarray, step: int = 30, count: int = 91) -> list[np.ndarray]:
    """Meridians and parallels, each (count, 3), carried from the unit sphere to the surface."""
    angles = np.linspace(0.0, 2 * np.pi, count)
    half = np.linspace(-np.pi / 2, np.pi / 2, count)
    lines = [
        np.stack([np.cos(half) * np.cos(turn), np.cos(half) * np.sin(turn), np.sin(half)], axis=1)
        for turn in np.deg2rad(np.arange(0, 360, step))
    ]
    for height in np.deg2rad(np.arange(-90 + step, 90, step)):
        lines.append(
            np.stack(
                [np.cos(height) * np.cos(angles), np.cos(height) * np.sin(angles), np.full(count, np.sin(height))],
                axis=1,
            )
        )
    stretch = root(surface, -0.5)
    return [line @ stretch for line in lines]


def sheet(surface: np.ndarray, meridians: int = 49, parallels: int = 25) -> np.ndarray:
    """The surface as a grid of points (parallels, meridians, 3)."""
    turn, height = np.meshgrid(np.linspace(0, 2 * np.pi, meridians), np.linspace(-np.pi / 2, np.pi / 2, parallels))
    return np.stack([np.cos(height) * np.cos(turn), np.cos(height) * np.sin(turn), np.sin(height)], axis=2) @ root(
        surface, -0.5
    )


def lens(rings: int = 12, spokes: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """The unit disc as points (m, 2) and triangles (t, 3), rings closer towards the edge, where shading changes fastest."""
    radii = np.sin(np.linspace(0, np.pi / 2, rings + 1)[1:])
    turn = np.linspace(0, 2 * np.pi, spokes, endpoint=False)
    points = np.stack([np.outer(radii, np.cos(turn)), np.outer(radii, np.sin(turn))], axis=2).reshape(-1, 2)
    place = 1 + np.arange(rings * spokes).reshape(rings, spokes)
    here, right = place[:-1].ravel(), np.roll(place, -1, axis=1)[:-1].ravel()
    above, corner = place[1:].ravel(), np.roll(place, -1, axis=1)[1:].ravel()
    core = np.stack([np.zeros(spokes, dtype=int), place[0], np.roll(place[0], -1)], axis=1)
    sides = [np.stack([here, corner, right], axis=1), np.stack([here, above, corner], axis=1)]
    return np.concatenate([np.zeros((1, 2)), points]), np.concatenate([core, *sides])
