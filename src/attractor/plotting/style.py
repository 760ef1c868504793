"""Plot style: colours for colour-blind readers, fonts, sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import numpy as np

from attractor.errors import InputError, missing

# the palette of Okabe and Ito without black and yellow, which have too little contrast on dark and on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A6A58")
# the same hues in cyclic order, for longitudes
WHEEL = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7")

INK, QUIET, FAINT, HAIR = "#1b1f24", "#5b6470", "#b8c0cc", "#dfe4ea"
GLOBE_LIGHT, GLOBE_SHADE = "#ffffff", "#c3cddb"

COLUMNS = {"one": 3.4, "two": 7.0}
GOLDEN = 0.618  # height over width of a figure
_width: ContextVar[float] = ContextVar("width of a figure in inches", default=COLUMNS["two"])

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib and can be embedded
    "font.size": 7.5,
    "axes.titlesize": 8.0,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": None,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,  # TrueType, embedded and searchable: many journals reject type 3
    "ps.fonttype": 42,
    "svg.fonttype": "path",  # outlines need no font
    "svg.hashsalt": "attractor",
    "axes.unicode_minus": True,
    "text.usetex": False,
}


@contextmanager
def use_style() -> Iterator[None]:
    """Apply the settings of the package while a figure is drawn; the user's settings are restored afterwards."""
    try:
        import matplotlib
    except ImportError:
        raise missing("matplotlib", "plot") from None

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(cast(Any, RC))
        yield


@contextmanager
def paper(width: str | float = "two") -> Iterator[tuple[float, float]]:
    """Apply the style of the package: ``with at.plotting.paper("one"): ...``.

    Inside, figures of attractor are ``width`` wide ("one" column, "two" columns or inches) by default, and other matplotlib figures
    have the same fonts, colours and width. Yields that width and a height in the golden ratio. The user's settings are restored afterwards.
    """
    with use_width(width) as across, use_style():
        import matplotlib
        from cycler import cycler

        size = (across, GOLDEN * across)
        matplotlib.rcParams.update({"figure.figsize": size, "axes.prop_cycle": cycler(color=PALETTE)})
        yield size


@contextmanager
def use_width(width: str | float) -> Iterator[float]:
    """Set the default width of figures; yields it in inches."""
    token = _width.set(inches(width))
    try:
        yield _width.get()
    finally:
        _width.reset(token)


def inches(width: str | float | None = None) -> float:
    """Return the width of a figure: "one" or "two" columns, inches, or None for the current default."""
    if width is None:
        return _width.get()
    if isinstance(width, str) and width in COLUMNS:
        return COLUMNS[width]
    try:
        number = float(width)
    except ValueError:
        raise InputError(
            f"width {width!r} is not known; give 'one' (3.4 in), 'two' (7 in) or a number of inches"
        ) from None
    if not 2.0 <= number <= 40.0:
        raise InputError(f"width must lie between 2 and 40 inches, got {width}")
    return number


def rgb(colour: str) -> np.ndarray:
    """Return red, green, blue in [0, 1] of #rrggbb."""
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0


def to_hex(colours: np.ndarray) -> list[str]:
    """Return #rrggbb of each row of colours (n, 3)."""
    levels = np.clip(np.rint(colours * 255), 0, 255).astype(int)
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in levels]


def wheel(fractions: np.ndarray) -> np.ndarray:
    """Return colours (n, 3) of positions in [0, 1) on the closed wheel, mixed in linear light."""
    stops = np.array([rgb(colour) for colour in (*WHEEL, WHEEL[0])]) ** 2.2
    place = np.mod(fractions, 1.0) * len(WHEEL)
    return np.stack([np.interp(place, np.arange(len(stops)), channel) for channel in stops.T], axis=1) ** (1 / 2.2)


def ramp(fractions: np.ndarray) -> np.ndarray:
    """Return colours (n, 3) of positions in [0, 1] on an open scale, the wheel without its seam."""
    return wheel(np.clip(fractions, 0.0, 1.0) * (len(WHEEL) - 1) / len(WHEEL))
