"""Open questions of the papers, one experiment each; see ``attractor.experiments.answers``."""
