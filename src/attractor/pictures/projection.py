"""From dimension d to what paper can show: one, two or three coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attractor.pictures.scene import Scene

# Beyond this growth of norms a fixed frame would shrink the start to a dot.
GROWTH = 6.0


@dataclass(frozen=True, eq=False)
class Projection:
    """Coordinates (S, n, k) to draw, the matrix (k, k) of the surface {y : y'My = 1} they lie on or in, and remarks.

    ``scale`` (S,) is what a unit of the drawing stands for at each time, ``bodies`` (S, n, d) the tokens in units of the
    size of their space, for deciding which of them coincide.
    """

    coordinates: np.ndarray
    bodies: np.ndarray
    surface: np.ndarray | None
    on_surface: bool
    scale: np.ndarray
    axes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def rescaled(self) -> bool:
        return bool((self.scale != 1.0).any())


def project(scene: Scene) -> Projection:
    """The first three coordinates, or the first three principal axes in dimension four and more."""
    points, dim = scene.points, scene.points.shape[2]
    scale, notes = np.ones(scene.times.size), []
    if scene.space_name == "euclidean":
        # the 99th percentile: one stray token must not shrink the picture
        extent = np.quantile(np.linalg.norm(points, axis=2), 0.99, axis=1)
        if extent.max() > GROWTH * extent[0] and extent.min() > 0:
            scale = extent
            notes.append("Norms grow: each time is drawn in units of its own extent.")
        points = points / scale[:, None, None]
    curved = scene.space_name != "euclidean"
    bodies = bodies_of(scene, points)
    if dim <= 3:
        names = tuple("x" + "₁₂₃"[i] for i in range(dim))
        return Projection(points, bodies, surface_seen(scene, np.eye(dim)), curved, scale, names, tuple(notes))
    axes, share = principal_axes(points, centred=not curved)
    notes.append(
        f"Dimension {dim}, projected on the first three principal axes of the first and last clouds "
        f"({share:.0%} of their spread)."
    )
    names = ("axis 1", "axis 2", "axis 3")
    return Projection(points @ axes.T, bodies, surface_seen(scene, axes), False, scale, names, tuple(notes))


def surface_seen(scene: Scene, axes: np.ndarray) -> np.ndarray | None:
    """M of {y : y'My = 1}, the outline of the space under y = Ax: M = (A W^-1 A')^-1; None in flat space."""
    if scene.space_name == "euclidean":
        return None
    if scene.space_name == "sphere" or scene.ellipsoid is None:
        return np.eye(len(axes)) / scene.space_radius**2
    return np.linalg.inv(axes @ np.linalg.solve(scene.ellipsoid, axes.T))


def root(matrix: np.ndarray, power: float) -> np.ndarray:
    """A symmetric positive definite matrix to a power."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**power) @ vectors.T


def bodies_of(scene: Scene, points: np.ndarray) -> np.ndarray:
    """Tokens in units of the size of their space: on the unit sphere, or divided by the extent of the whole cloud."""
    if scene.space_name == "sphere":
        return points / scene.space_radius
    if scene.ellipsoid is not None and scene.space_name == "ellipsoid":
        return points @ root(scene.ellipsoid, 0.5)
    points = points - points.mean(axis=(0, 1))
    return points / max(float(np.abs(points).max()), np.finfo(float).tiny)


def principal_axes(points: np.ndarray, centred: bool) -> tuple[np.ndarray, float]:
    """Rows (3, d) of the leading axes of the first and last clouds, each cloud weighed alike, and the share they carry."""
    clouds = [cloud - cloud.mean(axis=0) if centred else cloud for cloud in (points[0], points[-1])]
    sizes = [max(float(np.sqrt(np.square(cloud).sum(axis=1).mean())), np.finfo(float).tiny) for cloud in clouds]
    stacked = np.concatenate([cloud / size for cloud, size in zip(clouds, sizes, strict=True)])
    if len(stacked) < stacked.shape[1]:
        _, singular, rows = np.linalg.svd(stacked, full_matrices=False)
        shares = singular**2
    else:
        values, vectors = np.linalg.eigh(stacked.T @ stacked)
        shares, rows = values[::-1], vectors[:, ::-1].T
    # fewer directions than axes, as for one token: any others that are orthogonal will do
    axes = np.linalg.qr(np.concatenate([rows[:3], np.eye(3, rows.shape[1])]).T)[0].T[:3]
    # a sign that does not hang on the library: the largest entry of each axis is positive
    axes = axes * np.where(axes[np.arange(3), np.abs(axes).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]
    total = float(shares.sum())
    return axes, float(shares[:3].sum() / total) if total > 0 else 1.0
