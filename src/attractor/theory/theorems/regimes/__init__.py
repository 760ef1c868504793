"""Regimes of unnormalised attention [pham2025dynamical], with the hypotheses its claims need."""
