"""Systems that refute claims, one file each; see ``attractor.theory.claims``."""
