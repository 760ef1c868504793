"""Where tokens move: flat space, the sphere, ellipsoids."""

from attractor.spaces.space import Ellipsoid, Euclidean, Space, Sphere, angle, space_named

__all__ = ["Ellipsoid", "Euclidean", "Space", "Sphere", "angle", "space_named"]
