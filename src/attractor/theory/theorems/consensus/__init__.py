"""Consensus on spheres and ellipsoids [abella2024asymptotic], with the hypotheses its claims need, and its neighbours."""
