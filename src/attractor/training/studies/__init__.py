"""Studies: training runs of several arms and seeds, and their statistics."""
