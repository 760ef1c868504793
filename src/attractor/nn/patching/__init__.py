"""Refinements of pretrained models of the ``transformers`` library, in place and removable."""
