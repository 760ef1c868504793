"""The point of view: an orthographic camera that shows the final clusters from the front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attractor.errors import InputError
from attractor.pictures.projection import Projection

DEFAULT = (-52.0, 24.0)


@dataclass(frozen=True, eq=False)
class Camera:
    """Rows of ``frame`` (3, 3) point right, up and towards the eye."""

    azimuth: float
    elevation: float

    @property
    def frame(self) -> np.ndarray:
        longitude, latitude = np.deg2rad(self.azimuth), np.deg2rad(self.elevation)
        eye = np.array([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)])
        right = np.array([-np.sin(longitude), np.cos(longitude), 0.0])
        return np.stack([right, np.cross(eye, right), eye])

    def screen(self, points: np.ndarray) -> np.ndarray:
        """Places (..., 2) of points (..., 3) on the picture; flat points stay where they are."""
        return points @ self.frame[:2].T if points.shape[-1] == 3 else points

    def facing(self, points: np.ndarray, surface: np.ndarray | None) -> np.ndarray:
        """From -1, at the back, to 1, at the front: by the normal of the surface, or by depth where there is none."""
        if points.shape[-1] != 3:
            return np.ones(points.shape[:-1])
        if surface is not None:
            points = points @ surface
            points = points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), 1e-300)
        return np.clip(points @ self.frame[2], -1.0, 1.0)


def choose_camera(projection: Projection, masses: np.ndarray, view: tuple[float, float] | None) -> Camera:
    """The view asked for, or the one that shows most of the final mass, and some of the middle, well inside the front."""
    if view is not None:
        try:
            azimuth, elevation = (float(angle) for angle in view)
        except (TypeError, ValueError):
            raise InputError(f"view must be (azimuth, elevation) in degrees, got {view!r}") from None
        if not (np.isfinite(azimuth) and -90 <= elevation <= 90):
            raise InputError(f"view needs a finite azimuth and an elevation from -90 to 90 degrees, got {view!r}")
        return Camera(azimuth, elevation)
    if projection.surface is None or projection.coordinates.shape[2] != 3:
        return Camera(*DEFAULT)
    weights = masses / masses.sum()
    last, middle = projection.coordinates[-1], projection.coordinates[len(projection.coordinates) // 2]

    def seen(camera: Camera, points: np.ndarray) -> float:
        return float(weights @ np.clip(camera.facing(points, projection.surface), -0.2, 0.5))

    views = [Camera(DEFAULT[0] + 15.0 * step, tilt) for tilt in (24.0, 12.0, 40.0, -20.0) for step in range(24)]
    scores = [round(seen(camera, last) + 0.1 * seen(camera, middle), 6) for camera in views]
    return views[int(np.argmax(scores))]
