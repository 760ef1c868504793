"""Animations as GIF, WebP or MP4."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import AttractorError, missing
from attractor.plotting import static, style
from attractor.plotting.preparation import Drawing
from attractor.plotting.scene import select_frames as choose
from attractor.plotting.scene import subsample
from attractor.plotting.static import wrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# seconds for which the last frame of a GIF stays
HOLD = 1.5


def write_gif(images: Iterator[np.ndarray], path: Path, fps: int, hues: np.ndarray) -> None:
    """Write a GIF with one palette for all frames, so that colours do not flicker."""
    try:
        from PIL import Image
    except ImportError:
        raise missing("pillow", "plot") from None
    colours = palette(hues)
    ground = Image.new("P", (1, 1))
    ground.putpalette(colours.ravel().tolist())
    drawn = []
    for pixels in images:
        image = Image.fromarray(pixels).quantize(palette=ground, dither=Image.Dither.NONE)
        # pillow maps white to a near white, which is visible on a white page
        numbers = np.where((pixels == 255).all(axis=2), 0, np.asarray(image)).astype(np.uint8)
        exact = Image.fromarray(numbers)
        exact.putpalette(colours.ravel().tolist())
        drawn.append(exact)
    drawn[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=drawn[1:],
        duration=pauses(len(drawn), fps),
        loop=0,
        optimize=False,
    )


def pauses(frames: int, fps: int) -> list[int]:
    """Return the milliseconds for which each frame is shown."""
    pause = max(20, round(1000 / fps))
    return [pause] * (frames - 1) + [pause + round(1000 * HOLD)]


def write_webp(images: Iterator[np.ndarray], path: Path, fps: int) -> None:
    """Write an animated WebP, about a fifth of the size of a GIF."""
    try:
        from PIL import Image
    except ImportError:
        raise missing("pillow", "plot") from None
    drawn = [Image.fromarray(pixels) for pixels in images]
    times = pauses(len(drawn), fps)
    drawn[0].save(
        path, format="WEBP", save_all=True, append_images=drawn[1:], duration=times, loop=0, quality=60, method=4
    )


def palette(hues: np.ndarray) -> np.ndarray:
    """Return the 256 colours (256, 3) of a GIF: white first, the sphere, greys, and the hues of tokens faded in steps."""
    kinds = np.unique(np.rint(hues * 15) / 15, axis=0)
    kinds = np.concatenate(
        [kinds[subsample(len(kinds), 24)], [style.rgb(style.PALETTE[0]), style.rgb(style.PALETTE[1])]]
    )
    light, shade = style.rgb(style.GLOBE_LIGHT), style.rgb(style.GLOBE_SHADE)
    globe = shade + np.linspace(0, 1, 24)[:, None] * (light - shade)
    ink = style.rgb(style.INK) + np.linspace(0, 1, 22)[:, None] * (light - style.rgb(style.INK))
    steps = (256 - len(globe) - len(ink)) // len(kinds)
    middle = (2 * light + shade) / 3
    faded = [kinds + part * (middle - kinds) for part in np.linspace(0, 1, steps, endpoint=False)]
    colours = np.concatenate([globe[::-1], ink, *faded])
    return np.rint(255 * np.resize(colours, (256, 3))).astype(np.uint8)


def write_mp4(images: Iterator[np.ndarray], path: Path, fps: int) -> None:
    """Write H.264 in the most widely supported pixel format."""
    program = ffmpeg()
    first = next(images)
    height, width = first.shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    coding = ["-an", "-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    command = [program, "-y", "-loglevel", "error", *source, *coding, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        # a broken pipe means that ffmpeg stopped; its error stream has the reason
        with suppress(BrokenPipeError):
            last = first
            process.stdin.write(first.tobytes())
            for last in images:
                process.stdin.write(last.tobytes())
            for _ in range(round(HOLD * fps)):
                process.stdin.write(last.tobytes())
        with suppress(BrokenPipeError):
            process.stdin.close()
        complaint = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stderr.close()
        if process.poll() is None and sys.exception() is not None:
            process.kill()
        failed = process.wait() != 0
    if failed:
        raise AttractorError(
            f"ffmpeg could not write the animation: {complaint[-1] if complaint else 'no reason given'}"
        )


def ffmpeg() -> str:
    """Return the path of imageio-ffmpeg's ffmpeg, or of the system's."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        found = shutil.which("ffmpeg")
    if found is None:
        raise missing("ffmpeg (it comes with the package imageio-ffmpeg)", "plot")
    return found


Progress = Callable[[int, int], None]
TRAIL = 16
CURVES = 3


def animate(
    drawing: Drawing,
    path: Path,
    *,
    width: str | float | None,
    dpi: int,
    frames: int,
    fps: int,
    progress: Progress | None,
) -> None:
    """Write a .gif, .webp or .mp4."""
    if find_spec("matplotlib") is None:
        raise missing("matplotlib", "plot")
    indices = choose(drawing.progress, frames)
    with style.use_style():
        images = Stage(drawing, indices, style.inches(width), dpi).render(progress)
        if path.suffix.lower() == ".gif":
            write_gif(images, path, fps, drawing.colours.tokens)
        elif path.suffix.lower() == ".webp":
            write_webp(images, path, fps)
        else:
            write_mp4(images, path, fps)


class Stage:
    """A figure whose fixed parts are drawn once; each frame adds trails, discs and the time."""

    def __init__(self, drawing: Drawing, indices: np.ndarray, width: float, dpi: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.drawing, self.indices, self.width = drawing, indices, width
        self.labels = list(drawing.scene.curves)[:CURVES]
        strips_beside = bool(self.labels) and drawing.dim > 1
        side = 0.6 * width if strips_beside else min(width, 4.6)
        self.height = side + 0.5
        self.side, self.beside = side, strips_beside
        # video formats require even numbers of pixels
        self.figure: Figure = Figure(
            figsize=(2 * round(width * dpi / 2) / dpi, 2 * round(self.height * dpi / 2) / dpi), dpi=dpi
        )
        self.canvas = FigureCanvasAgg(self.figure)
        self.moving: list[Any] = []
        self.lay_out()

    def lay_out(self) -> None:
        drawing = self.drawing
        title = wrap(drawing.scene.title, self.width - 1.6, size=9.5, bold=True)
        self.figure.text(0.02, 0.985, "\n".join(title[:2]), fontsize=9.5, fontweight="bold", va="top", parse_math=False)
        self.clock = self.figure.text(0.98, 0.985, "", fontsize=9, va="top", ha="right", parse_math=False)
        room = self.side / self.width
        flat = drawing.dim == 1 or (drawing.projection.surface is None and drawing.dim == 2)
        box = (0.09, 0.11, room - 0.12, 0.78) if flat else (0.01, 0.02, room - 0.03, self.side / self.height - 0.05)
        left = self.figure.add_axes(box)
        if drawing.dim == 1:
            static.draw_positions(left, drawing)
            static.set_time_axis(left, drawing)
            self.strips = [left]
            self.trails = self.discs = None
        else:
            static.draw_backdrop(left, drawing)
            self.trails, self.discs = static.draw_snapshot(left, drawing, int(self.indices[0]), 0, full=self.side * 12)
            self.strips = self.lay_strips(room) if self.beside else []
        self.lines = [axes.axvline(0.0, color=style.PALETTE[1], linewidth=1.0) for axes in self.strips]
        self.moving = [artist for artist in (self.trails, self.discs, self.clock, *self.lines) if artist is not None]
        for artist in self.moving:
            artist.set_animated(True)

    def lay_strips(self, room: float) -> list[Any]:
        count = len(self.labels)
        tall = 0.82 / count
        made = []
        for number, label in enumerate(self.labels):
            axes = self.figure.add_axes((room + 0.06, 0.1 + (count - 1 - number) * tall, 0.92 - room, tall - 0.13))
            static.draw_curve(axes, self.drawing, label)
            static.mark_times(axes, self.drawing, np.zeros(0, dtype=int))
            static.set_time_axis(axes, self.drawing, label=number == count - 1, most=4)
            made.append(axes)
        return made

    def render(self, progress: Progress | None) -> Iterator[np.ndarray]:
        """Yield the pixels (height, width, 3) of each frame."""
        self.canvas.draw()
        still = self.canvas.copy_from_bbox(self.figure.bbox)
        for number, index in enumerate(self.indices):
            self.move(number, int(index))
            self.canvas.restore_region(still)
            for artist in self.moving:
                self.figure.draw_artist(artist)
            yield np.asarray(self.canvas.buffer_rgba())[..., :3].copy()
            if progress is not None:
                progress(number + 1, len(self.indices))

    def move(self, number: int, index: int) -> None:
        self.clock.set_text(static.time_label(self.drawing, index))
        now = float(self.drawing.time_axis.place(self.drawing.scene.times[index]))
        for line in self.lines:
            line.set_xdata([now, now])
        if self.discs is None or self.trails is None:
            return
        segments, hues = static.trails_at(self.drawing, int(self.indices[max(0, number - TRAIL)]), index)
        self.trails.set_segments(list(segments))
        self.trails.set_color(hues)
        places, areas, colours = static.discs_at(self.drawing, index, self.side * 12)
        self.discs.set_offsets(places)
        self.discs.set_sizes(areas)
        self.discs.set_linewidths(static.rim_widths(areas))
        self.discs.set_facecolor(colours)
        self.discs.set_edgecolor(static.rim_colours(colours))
