"""Consensus on spheres and ellipsoids [abella2024asymptotic], with the hypotheses that its claims need, and related results."""
