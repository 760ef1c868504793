"""Where tokens move: flat space, the sphere, ellipsoids."""

from attractor.spaces.ellipsoid import Ellipsoid
from attractor.spaces.euclidean import Euclidean
from attractor.spaces.space import Space, space_named
from attractor.spaces.sphere import Sphere

__all__ = ["Ellipsoid", "Euclidean", "Space", "Sphere", "space_named"]
