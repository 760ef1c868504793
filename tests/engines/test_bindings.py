"""Arrays given to compiled code are checked for type, layout and shape before their memory is used."""

from __future__ import annotations

import numpy as np
import pytest

from attractor.engines import fused, native

pytestmark = pytest.mark.skipif(bool(native.reason), reason=native.reason or "")


@pytest.mark.parametrize(
    "array",
    [np.zeros(3, dtype=np.float32), np.zeros(6)[::2]],
    ids=["another type", "not contiguous"],
)
def test_the_native_loop_rejects_arrays_of_another_type_or_layout(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match="the array 't' must be a contiguous, writable array of float64"):
        native.Loop().set_arrays(t=array)  # type: ignore[arg-type]


def test_the_native_loop_rejects_arrays_of_another_shape() -> None:
    loop = native.Loop()
    with pytest.raises(ValueError, match="the array 'y' is missing"):
        loop.run(0.1)
    loop.set_arrays(y=np.zeros((2, 5, 3)), saved=np.zeros((1, 2, 5, 3)), query=np.zeros((1, 1, 3, 3)), t=np.zeros(3))
    with pytest.raises(ValueError, match=r"the array 't' must have shape \(2\), got \(3\)"):
        loop.run(0.1)
    loop.set_arrays(y=np.zeros((5, 3)))
    with pytest.raises(ValueError, match=r"the array 'y' must have 3 axes, got shape \(5, 3\)"):
        loop.run(0.1)


def test_names_that_the_native_loop_does_not_have() -> None:
    with pytest.raises(ValueError, match="no array 'z'"):
        native.Loop().set_arrays(z=np.zeros(3))
    with pytest.raises(ValueError, match="no rule 'bored'"):
        native.Loop().set_rules([("bored", 1.0)])
    with pytest.raises(ValueError, match="no space 'torus'"):
        native.Loop().set_space("torus")


def test_the_neighbor_search_rejects_arrays_without_room() -> None:
    points = np.zeros((6, 2))
    with pytest.raises(ValueError, match="room for n / 2 pairs"):
        fused.module().cell_mates(points, 0.1, 1, np.zeros((1, 2), dtype=np.int64))
    with pytest.raises(TypeError):
        fused.module().cell_mates(points.astype(np.float32), 0.1, 1, np.zeros((3, 2), dtype=np.int64))
