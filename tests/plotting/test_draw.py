"""Every ending writes a whole, valid file; every failure writes none and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PathCollection

from attractor.errors import AttractorError, InputError, MissingExtraError, StoreError
from attractor.plotting import Scene, draw, draw_cones, draw_densities
from attractor.plotting.preparation import prepare

Make = Callable[..., Scene]
OPENINGS = {
    ".html": b"<!DOCTYPE html>",
    ".png": b"\x89PNG\r\n\x1a\n",
    ".pdf": b"%PDF-",
    ".svg": b"<?xml",
    ".gif": b"GIF89a",
    ".webp": b"WEBPVP8X",
    ".mp4": b"ftyp",
}


@pytest.mark.parametrize("suffix", OPENINGS)
def test_every_ending_writes_its_format(globe_scene: Scene, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tokens{suffix}"
    assert draw(globe_scene, path, frames=6, dpi=80) == path
    content = path.read_bytes()
    assert OPENINGS[suffix] in content[:64]
    assert len(content) > 5_000
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("space", ["euclidean", "sphere", "ellipsoid"])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5])
def test_every_dimension_and_space(make_scene: Make, tmp_path: Path, dim: int, space: str) -> None:
    scene = make_scene(dim, space)
    for suffix in (".png", ".html", ".gif"):
        path = draw(scene, tmp_path / f"tokens{suffix}", dpi=50, frames=2)
        assert path.stat().st_size > 3_000
    assert len(draw(scene, backend="plotly").frames) == scene.times.size


@pytest.mark.parametrize("suffix", [".html", ".png", ".gif", ".mp4"])
def test_one_saved_time_and_one_token(make_scene: Make, tmp_path: Path, suffix: str) -> None:
    for dim in (1, 2, 3):
        scene = make_scene(dim, "euclidean" if dim == 1 else "sphere", n=1, saved=2)
        still = replace(scene, times=scene.times[:1], points=scene.points[:1], curves={"norm": np.ones(1)}, events=[])
        assert draw(still, tmp_path / f"tokens{suffix}", dpi=50).stat().st_size > 1_000


@pytest.mark.parametrize("suffix", [".html", ".png", ".pdf"])
def test_many_tokens(tmp_path: Path, suffix: str) -> None:
    points = np.random.default_rng(5).standard_normal((4, 5000, 3))
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    scene = Scene(
        times=np.arange(4.0),
        points=points,
        masses=np.random.default_rng(6).random(5000),
        surface=np.eye(points.shape[-1]),
    )
    path = draw(scene, tmp_path / f"tokens{suffix}", dpi=80)
    assert path.stat().st_size < 7_000_000
    if suffix == ".html":
        assert "2,000 of 5,000 tokens are drawn" in path.read_text(encoding="utf-8")


def test_no_curves_no_words(make_scene: Make, tmp_path: Path) -> None:
    for dim in (1, 2, 3):
        bare = replace(make_scene(dim), curves={}, title="", caption="", events=[], outcome="")
        for suffix in (".png", ".html", ".gif"):
            draw(bare, tmp_path / f"bare{suffix}", dpi=50, frames=2)


def test_curves_may_hold_what_is_not_finite(make_scene: Make, tmp_path: Path) -> None:
    scene = make_scene()
    holes = np.full(scene.times.size, np.nan)
    steep = np.geomspace(1e-9, 1e9, scene.times.size)
    steep[2] = np.inf
    scene = replace(scene, curves={"nothing": holes, "steep": steep, "falls": -steep, "$not maths": steep})
    for suffix in (".png", ".html"):
        draw(scene, tmp_path / f"holes{suffix}", dpi=50)


def test_the_same_scene_gives_the_same_bytes(make_scene: Make, tmp_path: Path) -> None:
    for suffix in (".pdf", ".html"):
        first, second = (draw(make_scene(), tmp_path / f"{name}{suffix}", dpi=50).read_bytes() for name in "ab")
        assert first == second


def test_the_users_settings_are_left_alone(make_scene: Make, tmp_path: Path) -> None:
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "red", "text.usetex": True}):
        before = dict(matplotlib.rcParams)
        draw(make_scene(), tmp_path / "tokens.png", dpi=50)
        draw(make_scene(), tmp_path / "tokens.gif", dpi=50, frames=2)
        assert dict(matplotlib.rcParams) == before


def test_drawing_needs_no_pyplot_and_importing_no_matplotlib() -> None:
    probe = """
import sys, numpy as np
from attractor.plotting import Scene, draw, draw_cones, draw_densities
from attractor.plotting.preparation import prepare
assert not {"matplotlib", "plotly", "PIL", "imageio_ffmpeg"} & set(sys.modules), "imported too early"
draw(Scene(times=np.zeros(1), points=np.ones((1, 3, 2)), masses=np.ones(3)))
assert "matplotlib.pyplot" not in sys.modules, "pyplot has global state"
"""
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_columns_have_their_widths(make_scene: Make) -> None:
    for width, inches in (("one", 3.4), ("two", 7.0), (5.5, 5.5)):
        assert draw(make_scene(), width=width).get_size_inches()[0] == pytest.approx(inches)


def test_a_figure_shows_itself_in_a_notebook(make_scene: Make) -> None:
    assert draw(make_scene())._repr_png_().startswith(OPENINGS[".png"])


@pytest.mark.parametrize(
    ("name", "words"),
    [("tokens.bmp", r"\.bmp.*\.html.*\.mp4"), ("tokens", "without an ending"), ("none/tokens.png", "does not exist")],
)
def test_a_bad_path_is_one_sentence(make_scene: Make, tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        draw(make_scene(), tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_folder_is_not_a_picture(make_scene: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        draw(make_scene(), tmp_path)


def test_endings_may_be_capitals(make_scene: Make, tmp_path: Path) -> None:
    for name in ("A.PNG", "B.Gif", "C.MP4"):
        assert draw(make_scene(), tmp_path / name, dpi=50, frames=2).exists()


@pytest.mark.parametrize("suffix", OPENINGS)
def test_a_folder_that_may_not_be_written(
    make_scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(StoreError, match="permission denied"):
        draw(make_scene(), tmp_path / f"tokens{suffix}")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root may not write to")
def test_a_folder_that_nobody_may_write(make_scene: Make) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        draw(make_scene(), "/proc/tokens.png")


def test_a_failure_leaves_the_old_file_and_nothing_else(
    make_scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.gif"
    path.write_text("old")

    def give_up(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(make_scene(), path, dpi=50, frames=4, progress=give_up)
    with pytest.raises(KeyboardInterrupt):
        draw(make_scene(), tmp_path / "tokens.mp4", dpi=50, frames=4, progress=give_up)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="no space left"):
        draw(make_scene(), path, dpi=50, frames=2)
    assert os.listdir(tmp_path) == ["tokens.gif"]
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("package", "suffix"), [("matplotlib", ".png"), ("matplotlib", ".gif"), ("plotly", ".html"), ("PIL", ".gif")]
)
def test_a_missing_package_is_named(
    make_scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, suffix: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"attractor\[plot\]"):
        draw(make_scene(), tmp_path / f"tokens{suffix}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [{"backend": "gnuplot"}, {"width": "three"}, {"width": 0.1}, {"frames": 0}, {"snapshots": 1.5}, {"dpi": "high"}],
)
def test_a_bad_option_is_one_sentence(make_scene: Make, options: dict) -> None:
    with pytest.raises(AttractorError) as refusal:
        draw(make_scene(), **options)
    assert "\n" not in str(refusal.value)


def test_a_constant_observable_is_stated_instead_of_drawn(globe_scene: Scene) -> None:
    constant = np.full(len(globe_scene.times), 2.0)
    scene = replace(globe_scene, curves={"token norm": constant, "gap": globe_scene.times})
    drawing = prepare(scene, tokens=100)
    assert list(drawing.scene.curves) == ["gap"]
    assert "Token norm: 2 at all times." in drawing.caption


def test_strips_below_each_other_share_their_time_axis(globe_scene: Scene) -> None:
    curves = {f"curve {k}": globe_scene.times + k for k in range(4)}
    figure = draw(replace(globe_scene, curves=curves), width="one")
    assert figure.get_size_inches()[1] < 7.5
    assert [axes.get_xlabel() for axes in figure.axes].count("time") == 1


def test_discs_are_drawn_whole(globe_scene: Scene) -> None:
    figure = draw(globe_scene)
    discs = [one for axes in figure.axes for one in axes.collections if isinstance(one, PathCollection)]
    assert discs
    assert not any(one.get_clip_on() for one in discs)


def test_every_case_has_its_cone() -> None:
    way = np.linspace([0.0, 0.0, 1.0], [0.3, 0.2, 0.8], 9)
    figure = draw_cones({"softmax": ([way], ["collapse"]), "l2": ([way, way], ["low_rank", "blow_up"])}, title="T")
    assert len(figure.axes) == 4
    assert {"softmax", "l2"} <= {text.get_text() for text in figure.texts}


def test_histograms_have_labels() -> None:
    """The density is named beside the first column, where labels meet no other panel."""
    figure = draw_densities([0.0, 1.0], np.random.default_rng(0).normal(size=(2, 200, 1)), title="T", caption="C")
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert [bool(axes.get_ylabel()) for axes in figure.axes] == [True, False]
