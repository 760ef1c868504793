"""What happens before anything is drawn: grouping, choosing, projecting, colouring, looking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.plotting import Scene
from attractor.plotting import preparation as globe
from attractor.plotting import scene as selection
from attractor.plotting.preparation import Camera, prepare, project
from attractor.plotting.scene import group_tokens

Make = Callable[..., Scene]


def test_coinciding_tokens_are_one_group() -> None:
    centres = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    owners = np.repeat(np.arange(3), 500)
    points = centres[owners] + 1e-7 * np.random.default_rng(1).standard_normal((1500, 3))
    assert (group_tokens(points, 1e-3) == owners).all()


def test_tokens_apart_stay_apart() -> None:
    points = np.random.default_rng(2).standard_normal((400, 3))
    assert group_tokens(points, 1e-6).max() == 399


def test_frames_hold_the_first_and_the_last_saved_time() -> None:
    progress = np.sort(np.random.default_rng(3).random(1000))
    chosen = selection.select_frames(progress, 120)
    assert chosen.size <= 120
    assert chosen[0] == 0
    assert chosen[-1] == 999
    assert (np.diff(chosen) > 0).all()


def test_pace_rises_from_zero_to_one(globe_scene: Scene) -> None:
    progress = selection.measure_progress(globe_scene.times, globe_scene.points)
    assert progress[0] == 0.0
    assert progress[-1] == pytest.approx(1.0)
    assert (np.diff(progress) >= 0).all()


def test_tokens_at_rest_have_a_pace_too() -> None:
    assert selection.measure_progress(np.zeros(3), np.ones((3, 2, 2))).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("space", ["sphere", "ellipsoid"])
def test_a_projection_stays_inside_the_shadow_of_its_surface(make_scene: Make, space: str) -> None:
    seen = project(make_scene(5, space))
    assert seen.surface is not None
    assert not seen.on_surface
    norms = np.einsum("sni,ij,snj->sn", seen.coordinates, seen.surface, seen.coordinates)
    assert norms.max() <= 1 + 1e-9
    assert "principal axes" in " ".join(seen.notes)


def test_three_dimensions_are_drawn_as_they_are(make_scene: Make) -> None:
    scene = make_scene(3, "ellipsoid")
    seen = project(scene)
    assert (seen.coordinates == scene.points).all()
    assert seen.surface == pytest.approx(scene.surface)
    assert np.linalg.norm(seen.bodies, axis=2) == pytest.approx(1.0)


def test_one_token_in_many_dimensions_has_three_axes(make_scene: Make) -> None:
    assert project(make_scene(5, "euclidean", n=1)).coordinates.shape[2] == 3
    assert np.isfinite(project(make_scene(5, "sphere", n=1)).coordinates).all()


def test_growing_norms_are_drawn_in_growing_units() -> None:
    growth = np.exp(np.arange(10.0))
    points = growth[:, None, None] * np.random.default_rng(4).standard_normal((1, 30, 2))
    seen = project(Scene(times=np.arange(10.0), points=points, masses=np.ones(30)))
    assert seen.rescaled
    assert seen.coordinates[0] == pytest.approx(seen.coordinates[-1])
    assert seen.scale / seen.scale[0] == pytest.approx(growth)


def test_colours_tell_the_final_clusters(globe_scene: Scene) -> None:
    drawing = prepare(globe_scene, tokens=500)
    assert drawing.colours.clusters is not None
    for cluster in np.unique(drawing.colours.clusters):
        members = drawing.colours.clusters == cluster
        assert len(np.unique(drawing.colours.tokens[members], axis=0)) == 1
        assert np.ptp(globe_scene.points[-1, members], axis=0).max() < 0.2
    assert "cluster" in drawing.caption


@pytest.mark.parametrize(("rule", "word"), [("start", "longitude"), ("index", "index"), ("cluster", "cluster")])
def test_colours_can_be_chosen(globe_scene: Scene, rule: str, word: str) -> None:
    drawing = prepare(globe_scene, tokens=500, colour=rule)
    assert word in drawing.caption
    assert ((drawing.colours.tokens >= 0) & (drawing.colours.tokens <= 1)).all()


def test_a_chain_over_the_whole_space_is_no_cluster() -> None:
    angles = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    scene = Scene(times=np.zeros(1), points=circle[None], masses=np.ones(400), surface=np.eye(circle.shape[-1]))
    assert prepare(scene, tokens=500).colours.clusters is None


def test_the_camera_sees_where_tokens_end() -> None:
    for place in np.eye(3):
        points = np.repeat(place[None, None], 20, axis=1)
        drawing = prepare(
            Scene(times=np.zeros(1), points=points, masses=np.ones(20), surface=np.eye(points.shape[-1])), tokens=20
        )
        assert drawing.facing(points[0]).min() > 0.2


def test_a_camera_is_an_orthonormal_frame() -> None:
    frame = Camera(37.0, -21.0).frame
    assert frame @ frame.T == pytest.approx(np.eye(3))
    assert np.linalg.det(frame) == pytest.approx(1.0)


def test_the_silhouette_holds_the_surface() -> None:
    surface, camera = np.diag([1.0, 2.0, 4.0]), Camera(30.0, 20.0)
    outline = globe.silhouette(surface, camera)
    shadow = np.linalg.inv(camera.frame[:2] @ np.linalg.inv(surface) @ camera.frame[:2].T)
    assert np.einsum("pi,ij,pj->p", outline, shadow, outline) == pytest.approx(1.0)
    grid = camera.screen(np.concatenate(globe.graticule(surface)))
    assert np.einsum("pi,ij,pj->p", grid, shadow, grid).max() <= 1 + 1e-9


def test_the_lens_covers_the_disc() -> None:
    points, triangles = globe.lens(spokes=256)
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    areas = ((b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0]) / 2
    assert (areas > 0).all()
    assert areas.sum() == pytest.approx(np.pi, rel=1e-3)


def test_discs_carry_all_the_mass(globe_scene: Scene) -> None:
    drawing = prepare(globe_scene, tokens=500)
    for index in (0, 30, -1):
        assert drawing.discs(index)[1].sum() == pytest.approx(1.0)
    assert drawing.discs(0)[0].size > drawing.discs(-1)[0].size


def test_what_is_not_finite_is_left_out_and_named(make_scene: Make) -> None:
    scene = make_scene(2, "euclidean")
    points = scene.points.copy()
    points[-1, 0], points[-2, 1] = np.inf, np.nan
    drawing = prepare(replace(scene, points=points), tokens=50)
    assert drawing.scene.times.size == scene.times.size - 2
    assert "2 saved times left out" in drawing.caption
    with pytest.raises(InputError, match="no saved time"):
        prepare(replace(scene, points=np.full_like(points, np.nan)), tokens=50)


@pytest.mark.parametrize(
    ("options", "words"), [({"colour": "red"}, "red"), ({"view": (0, 100)}, "elevation"), ({"view": "top"}, "azimuth")]
)
def test_a_bad_option_is_one_sentence(make_scene: Make, options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        prepare(make_scene(), tokens=50, **options)
