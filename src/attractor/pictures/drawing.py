"""A scene made ready to draw: coordinates, colours, sizes, camera, and the remarks that the caption must carry."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attractor.errors import InputError
from attractor.pictures import selection
from attractor.pictures.camera import Camera, choose_camera
from attractor.pictures.colours import Colours, colour_tokens
from attractor.pictures.grouping import groups
from attractor.pictures.projection import Projection, project
from attractor.pictures.scene import Scene
from attractor.pictures.time_axis import TimeAxis, quantity

# Closer than this, in units of the size of the space, tokens are one disc to the eye.
COINCIDENCE = 1e-3


@dataclass(frozen=True, eq=False)
class Drawing:
    """A scene made ready; ``scene`` holds only the saved times and the tokens that are drawn."""

    scene: Scene
    projection: Projection
    colours: Colours
    tokens: np.ndarray
    progress: np.ndarray
    time_axis: TimeAxis
    camera: Camera
    notes: tuple[str, ...]

    @property
    def dim(self) -> int:
        return self.projection.coordinates.shape[2]

    @property
    def fractions(self) -> np.ndarray:
        """Masses (n,) as parts of the whole."""
        return self.scene.masses / self.scene.masses.sum()

    def names(self) -> list[int | str]:
        """What each token is called: its number, and its label if it has one."""
        labels = self.scene.labels
        return [f"{index}: {labels[place]}" if labels else int(index) for place, index in enumerate(self.tokens)]

    def leaders(self, index: int) -> np.ndarray:
        """For each token (n,), the first of those it coincides with at a saved time: the one that is drawn for all."""
        labels = groups(self.projection.bodies[index], COINCIDENCE)
        first = np.unique(labels, return_index=True)[1]
        return first[labels]

    def discs(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens to draw at a saved time, and the share of the mass that each of their discs carries."""
        leaders = self.leaders(index)
        drawn = np.unique(leaders)
        return drawn, np.bincount(leaders, weights=self.fractions)[drawn]

    def box(self, index: int | None = None) -> tuple[np.ndarray, float]:
        """Centre (k,) and half side of a cube that holds the surface or, in flat space, every token at every time."""
        if self.projection.surface is not None:
            return np.zeros(self.dim), 1.0 / float(np.sqrt(np.linalg.eigvalsh(self.projection.surface)[0]))
        points = self.projection.coordinates if index is None else self.projection.coordinates[index]
        points = points.reshape(-1, self.dim)
        low, high = points.min(axis=0), points.max(axis=0)
        half = float((high - low).max()) / 2
        return (low + high) / 2, 1.12 * half if half > 0 else 1.0

    def facing(self, points: np.ndarray) -> np.ndarray:
        """From -1, at the back, to 1, at the front."""
        if self.projection.on_surface:
            return self.camera.facing(points, self.projection.surface)
        centre, half = self.box()
        return self.camera.facing((points - centre) / (1.2 * half), None)

    @property
    def circle(self) -> bool:
        return self.dim == 2 and self.projection.surface is not None

    def angles(self) -> np.ndarray:
        """Angles (S, n) in degrees in the plane; NaN breaks a line that leaves at the top and comes back at the bottom."""
        turn = np.rad2deg(np.arctan2(self.projection.coordinates[..., 1], self.projection.coordinates[..., 0]))
        turn[1:][np.abs(np.diff(turn, axis=0)) > 180] = np.nan
        return turn

    @property
    def caption(self) -> str:
        """What the picture shows and how to read it."""
        legend = "Each disc is a token, its area the mass; tokens that coincide are one disc." if self.dim > 1 else ""
        parts = [self.scene.caption.strip(), legend, self.colours.legend, *self.notes]
        return " ".join(part for part in parts if part)

    def left_out(self, most: int) -> str:
        """A word on observables for which there is no room."""
        count = len(self.scene.curves)
        return f"The first {most} of {count} observables are drawn." if count > most else ""

    @property
    def verdict(self) -> str:
        """One sentence on how the run ended."""
        if not self.scene.outcome:
            return ""
        name, time = self.scene.outcome.replace("_", " "), self.scene.outcome_time
        return f"Outcome: {name} at time {quantity(time)}." if np.isfinite(time) else f"Outcome: {name}."


def prepare(
    scene: Scene,
    *,
    tokens: int,
    colour: str = "auto",
    view: tuple[float, float] | None = None,
) -> Drawing:
    """Drop what cannot be drawn (and say so), choose tokens, coordinates, colours and a point of view."""
    scene, notes = drop_infinite(scene)
    chosen = selection.some(scene.masses.size, tokens)
    if chosen.size < scene.masses.size:
        notes.append(f"{chosen.size:,} of {scene.masses.size:,} tokens are drawn.")
        scene = with_tokens(scene, chosen)
    projection = project(scene)
    return Drawing(
        scene=scene,
        projection=projection,
        colours=colour_tokens(projection, scene.masses, colour),
        tokens=chosen,
        progress=selection.pace(scene.times, projection.coordinates),
        time_axis=TimeAxis.of(scene.times),
        camera=choose_camera(projection, scene.masses, view),
        notes=(*projection.notes, *notes),
    )


def drop_infinite(scene: Scene) -> tuple[Scene, list[str]]:
    """Leave out saved times at which a coordinate is not a finite number of drawable size, as after a blow-up."""
    with np.errstate(invalid="ignore"):
        sound = (np.abs(scene.points) < 1e30).all(axis=(1, 2))
    if sound.all():
        return scene, []
    if not sound.any():
        raise InputError("no saved time can be drawn: at each one some coordinate is infinite, NaN or beyond 1e30")
    curves = {label: values[sound] for label, values in scene.curves.items()}
    lost = int((~sound).sum())
    note = f"{lost} saved time{'s' if lost > 1 else ''} left out, where coordinates are not finite or beyond 1e30."
    return replace(scene, times=scene.times[sound], points=scene.points[sound], curves=curves), [note]


def with_tokens(scene: Scene, chosen: np.ndarray) -> Scene:
    return replace(
        scene,
        points=scene.points[:, chosen],
        masses=np.maximum(scene.masses[chosen], 1e-300),
        labels=[scene.labels[index] for index in chosen] if scene.labels else (),
    )
