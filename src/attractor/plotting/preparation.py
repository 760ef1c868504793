"""Preparation of a scene: projection, camera, colours of tokens, geometry of the drawn sphere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attractor.errors import InputError
from attractor.plotting import scene as selection
from attractor.plotting import style
from attractor.plotting.scene import Scene, group_tokens
from attractor.plotting.time_axis import TimeAxis, format_quantity
from attractor.registry import check_name

# beyond this growth of norms each time is drawn in its own units
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
    """Project on the first three coordinates, or on three principal axes in dimension four and more."""
    points, dim = scene.points, scene.points.shape[2]
    scale, notes = np.ones(scene.times.size), []
    if scene.surface is None:
        # the 99th percentile, so that one outlier does not shrink the figure
        extent = np.quantile(np.linalg.norm(points, axis=2), 0.99, axis=1)
        if extent.max() > GROWTH * extent[0] and extent.min() > 0:
            scale = extent
            notes.append("Norms grow: each time is drawn in units of its own extent.")
        points = points / scale[:, None, None]
    curved = scene.surface is not None
    bodies = scale_points(scene, points)
    if dim <= 3:
        names = tuple("x" + "₁₂₃"[i] for i in range(dim))
        return Projection(points, bodies, project_surface(scene, np.eye(dim)), curved, scale, names, tuple(notes))
    axes, share = principal_axes(points, centred=not curved)
    notes.append(
        f"Dimension {dim}, projected on the first three principal axes of the first and last clouds "
        f"({share:.0%} of their spread)."
    )
    names = ("axis 1", "axis 2", "axis 3")
    return Projection(points @ axes.T, bodies, project_surface(scene, axes), False, scale, names, tuple(notes))


def project_surface(scene: Scene, axes: np.ndarray) -> np.ndarray | None:
    """Return the matrix M = (A W^-1 A')^-1 of the outline of {x : x'Wx = 1} under y = Ax; None in flat space."""
    return None if scene.surface is None else np.linalg.inv(axes @ np.linalg.solve(scene.surface, axes.T))


def matrix_power(matrix: np.ndarray, power: float) -> np.ndarray:
    """Return a power of a symmetric positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**power) @ vectors.T


def scale_points(scene: Scene, points: np.ndarray) -> np.ndarray:
    """Return tokens on the unit sphere or, in flat space, divided by the extent of all of them."""
    if scene.surface is not None:
        return points @ matrix_power(scene.surface, 0.5)
    points = points - points.mean(axis=(0, 1))
    return points / max(float(np.abs(points).max()), np.finfo(float).tiny)


def principal_axes(points: np.ndarray, centred: bool) -> tuple[np.ndarray, float]:
    """Return the leading axes (3, d) of the first and last states, weighted equally, and their share of the variance."""
    clouds = [cloud - cloud.mean(axis=0) if centred else cloud for cloud in (points[0], points[-1])]
    sizes = [max(float(np.sqrt(np.square(cloud).sum(axis=1).mean())), np.finfo(float).tiny) for cloud in clouds]
    stacked = np.concatenate([cloud / size for cloud, size in zip(clouds, sizes, strict=True)])
    if len(stacked) < stacked.shape[1]:
        _, singular, rows = np.linalg.svd(stacked, full_matrices=False)
        shares = singular**2
    else:
        values, vectors = np.linalg.eigh(stacked.T @ stacked)
        shares, rows = values[::-1], vectors[:, ::-1].T
    # with fewer directions than axes, as for one token, add orthogonal ones
    axes = np.linalg.qr(np.concatenate([rows[:3], np.eye(3, rows.shape[1])]).T)[0].T[:3]
    # the largest entry of each axis is positive, so that signs do not depend on the library
    axes = axes * np.where(axes[np.arange(3), np.abs(axes).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]
    total = float(shares.sum())
    return axes, float(shares[:3].sum() / total) if total > 0 else 1.0


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
        """Return the positions (..., 2) of points (..., 3) in the figure; points of the plane are unchanged."""
        return points @ self.frame[:2].T if points.shape[-1] == 3 else points

    def facing(self, points: np.ndarray, surface: np.ndarray | None) -> np.ndarray:
        """Return values from -1 (back) to 1 (front), by the normal of the surface or, without one, by depth."""
        if points.shape[-1] != 3:
            return np.ones(points.shape[:-1])
        if surface is not None:
            points = points @ surface
            points = points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), 1e-300)
        return np.clip(points @ self.frame[2], -1.0, 1.0)


def choose_camera(projection: Projection, masses: np.ndarray, view: tuple[float, float] | None) -> Camera:
    """Return the given view, or the one that shows most of the final mass, and some of the mass half-way, near the front."""
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


LIGHT = np.array([-0.38, 0.52, 0.77])


def silhouette(surface: np.ndarray, camera: Camera, count: int = 181) -> np.ndarray:
    """Return the outline (count, 2) of {x : x'Mx = 1} seen by the camera; in the plane, the curve itself."""
    inverse = np.linalg.inv(surface)
    if len(surface) == 3:
        inverse = camera.frame[:2] @ inverse @ camera.frame[:2].T
    angles = np.linspace(0.0, 2 * np.pi, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) @ matrix_power(inverse, 0.5)


def shading(surface: np.ndarray, camera: Camera, reach: float, pixels: int = 220) -> np.ndarray:
    """Return an image (pixels, pixels, 3) of the lit surface on the square [-reach, reach]^2, row 0 at the bottom.

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
    """Return meridians and parallels, each (count, 3), mapped from the unit sphere to the surface."""
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
    stretch = matrix_power(surface, -0.5)
    return [line @ stretch for line in lines]


def sheet(surface: np.ndarray, meridians: int = 49, parallels: int = 25) -> np.ndarray:
    """Return the surface as a grid of points (parallels, meridians, 3)."""
    turn, height = np.meshgrid(np.linspace(0, 2 * np.pi, meridians), np.linspace(-np.pi / 2, np.pi / 2, parallels))
    return np.stack(
        [np.cos(height) * np.cos(turn), np.cos(height) * np.sin(turn), np.sin(height)], axis=2
    ) @ matrix_power(surface, -0.5)


def lens(rings: int = 12, spokes: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit disc as points (m, 2) and triangles (t, 3), with rings closer towards the edge, where shading varies most."""
    radii = np.sin(np.linspace(0, np.pi / 2, rings + 1)[1:])
    turn = np.linspace(0, 2 * np.pi, spokes, endpoint=False)
    points = np.stack([np.outer(radii, np.cos(turn)), np.outer(radii, np.sin(turn))], axis=2).reshape(-1, 2)
    place = 1 + np.arange(rings * spokes).reshape(rings, spokes)
    here, right = place[:-1].ravel(), np.roll(place, -1, axis=1)[:-1].ravel()
    above, corner = place[1:].ravel(), np.roll(place, -1, axis=1)[1:].ravel()
    core = np.stack([np.zeros(spokes, dtype=int), place[0], np.roll(place[0], -1)], axis=1)
    sides = [np.stack([here, corner, right], axis=1), np.stack([here, above, corner], axis=1)]
    return np.concatenate([np.zeros((1, 2)), points]), np.concatenate([core, *sides])


RULES = ("auto", "cluster", "start", "index")
# tokens chained by steps of a twentieth of the size of the space form a cluster if it is this compact
REACH, COMPACT = 0.05, 0.35


@dataclass(frozen=True, eq=False)
class Colours:
    """One colour per token (n, 3), the cluster of each token if colours show clusters, and a text for the caption."""

    tokens: np.ndarray
    clusters: np.ndarray | None
    legend: str


def colour_tokens(projection: Projection, masses: np.ndarray, rule: str = "auto") -> Colours:
    """Colour by final cluster if there are two to seven, otherwise by initial position."""
    check_name(rule, RULES, "colour")
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
    """Colour by longitude on the first two drawn axes, or by rank on a line."""
    start = projection.coordinates[0]
    if start.shape[1] == 1:
        rank = np.argsort(np.argsort(start[:, 0], kind="stable"), kind="stable")
        return Colours(style.ramp(rank / max(len(rank) - 1, 1)), None, "Colour: the order in which tokens start.")
    centre = np.zeros(start.shape[1]) if projection.surface is not None else start.mean(axis=0)
    longitude = np.arctan2(start[:, 1] - centre[1], start[:, 0] - centre[0])
    word = "longitude" if start.shape[1] == 3 else "angle"
    return Colours(style.wheel(longitude / (2 * np.pi)), None, f"Colour: the {word} a token starts at.")


def final_clusters(bodies: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Return labels (n,) of the clusters of a state, the heaviest first."""
    labels = group_tokens(bodies, REACH)
    weights = np.bincount(labels, weights=masses)
    rank = np.empty(weights.size, dtype=int)
    rank[np.argsort(-weights, kind="stable")] = np.arange(weights.size)
    return rank[labels]


def compact(bodies: np.ndarray, clusters: np.ndarray) -> bool:
    """Whether every cluster is small compared with the space."""
    counts = np.bincount(clusters)
    centres = np.stack([np.bincount(clusters, weights=column) / counts for column in bodies.T], axis=1)
    return bool(np.linalg.norm(bodies - centres[clusters], axis=1).max() < COMPACT)


# tokens closer than this, in units of the size of the space, are drawn as one disc
COINCIDENCE = 1e-3


@dataclass(frozen=True, eq=False)
class Drawing:
    """A prepared scene; ``scene`` holds only the saved times and tokens that are drawn."""

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
        """Masses (n,) as fractions of the total."""
        return self.scene.masses / self.scene.masses.sum()

    def names(self) -> list[int | str]:
        """Return the number of each token, with its label if it has one."""
        labels = self.scene.labels
        return [f"{index}: {labels[place]}" if labels else int(index) for place, index in enumerate(self.tokens)]

    def leaders(self, index: int) -> np.ndarray:
        """Return for each token (n,) the first token at the same place, which is drawn for all of them."""
        labels = group_tokens(self.projection.bodies[index], COINCIDENCE)
        first = np.unique(labels, return_index=True)[1]
        return first[labels]

    def discs(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens to draw at a saved time and the mass fractions of their discs."""
        leaders = self.leaders(index)
        drawn = np.unique(leaders)
        return drawn, np.bincount(leaders, weights=self.fractions)[drawn]

    def box(self, index: int | None = None) -> tuple[np.ndarray, float]:
        """Return centre (k,) and half side of a cube that holds the surface or, in flat space, all tokens at all times."""
        if self.projection.surface is not None:
            return np.zeros(self.dim), 1.0 / float(np.sqrt(np.linalg.eigvalsh(self.projection.surface)[0]))
        points = self.projection.coordinates if index is None else self.projection.coordinates[index]
        points = points.reshape(-1, self.dim)
        low, high = points.min(axis=0), points.max(axis=0)
        half = float((high - low).max()) / 2
        return (low + high) / 2, 1.12 * half if half > 0 else 1.0

    def facing(self, points: np.ndarray) -> np.ndarray:
        """Return values from -1 (back) to 1 (front)."""
        if self.projection.on_surface:
            return self.camera.facing(points, self.projection.surface)
        centre, half = self.box()
        return self.camera.facing((points - centre) / (1.2 * half), None)

    @property
    def circle(self) -> bool:
        return self.dim == 2 and self.projection.surface is not None

    def angles(self) -> np.ndarray:
        """Return angles (S, n) in degrees in the plane, with NaN where a line jumps from 180 to -180."""
        turn = np.rad2deg(np.arctan2(self.projection.coordinates[..., 1], self.projection.coordinates[..., 0]))
        turn[1:][np.abs(np.diff(turn, axis=0)) > 180] = np.nan
        return turn

    @property
    def caption(self) -> str:
        """Text on what the figure shows and how to read it."""
        legend = "Each disc is a token, its area the mass; tokens that coincide are one disc." if self.dim > 1 else ""
        parts = [self.scene.caption.strip(), legend, self.colours.legend, *self.notes]
        return " ".join(part for part in parts if part)

    def left_out(self, most: int) -> str:
        """Return a note on observables that are not drawn."""
        count = len(self.scene.curves)
        return f"The first {most} of {count} observables are drawn." if count > most else ""

    @property
    def verdict(self) -> str:
        """One sentence on the outcome of the run."""
        if not self.scene.outcome:
            return ""
        name, time = self.scene.outcome.replace("_", " "), self.scene.outcome_time
        return (
            f"Outcome: {name} at {self.scene.clock} {format_quantity(time)}."
            if np.isfinite(time)
            else f"Outcome: {name}."
        )


def prepare(
    scene: Scene,
    *,
    tokens: int,
    colour: str = "auto",
    view: tuple[float, float] | None = None,
) -> Drawing:
    """Drop what cannot be drawn (with a note), and choose tokens, coordinates, colours and a camera."""
    scene, notes = drop_infinite(scene)
    scene, constant = drop_constant(scene)
    notes += constant
    chosen = selection.subsample(scene.masses.size, tokens)
    if chosen.size < scene.masses.size:
        notes.append(f"{chosen.size:,} of {scene.masses.size:,} tokens are drawn.")
        scene = select_tokens(scene, chosen)
    projection = project(scene)
    return Drawing(
        scene=scene,
        projection=projection,
        colours=colour_tokens(projection, scene.masses, colour),
        tokens=chosen,
        progress=selection.measure_progress(scene.times, projection.coordinates),
        time_axis=TimeAxis.of(scene.times, linear=scene.clock != "time"),
        camera=choose_camera(projection, scene.masses, view),
        notes=(*projection.notes, *notes),
    )


def drop_infinite(scene: Scene) -> tuple[Scene, list[str]]:
    """Drop saved times with coordinates that are not finite or too large, as after a blow-up."""
    with np.errstate(invalid="ignore"):
        sound = (np.abs(scene.points) < 1e30).all(axis=(1, 2))
    if sound.all():
        return scene, []
    if not sound.any():
        raise InputError("no saved time can be drawn: at each one some coordinate is infinite, NaN or beyond 1e30")
    curves = {label: values[sound] for label, values in scene.curves.items()}
    bands = {label: values[:, sound] for label, values in scene.bands.items()}
    lost = int((~sound).sum())
    note = f"{lost} saved time{'s' if lost > 1 else ''} left out, where coordinates are not finite or beyond 1e30."
    return replace(scene, times=scene.times[sound], points=scene.points[sound], curves=curves, bands=bands), [note]


def drop_constant(scene: Scene) -> tuple[Scene, list[str]]:
    """Drop observables that keep their value to rounding, and state it."""
    if len(scene.times) < 2:
        return scene, []
    kept, notes = dict(scene.curves), []
    for label, values in scene.curves.items():
        whole = np.append(scene.bands[label], values) if label in scene.bands else values
        if np.isfinite(whole).all() and np.ptp(whole) <= 1e-9 * np.abs(whole).max(initial=0.0):
            del kept[label]
            notes.append(f"{label[:1].upper()}{label[1:]}: {format_quantity(float(values[0]))} at all times.")
    bands = {label: ends for label, ends in scene.bands.items() if label in kept}
    return (replace(scene, curves=kept, bands=bands), notes) if notes else (scene, [])


def select_tokens(scene: Scene, chosen: np.ndarray) -> Scene:
    return replace(
        scene,
        points=scene.points[:, chosen],
        masses=np.maximum(scene.masses[chosen], 1e-300),
        labels=[scene.labels[index] for index in chosen] if scene.labels else (),
    )
