"""Theorems, one file each, in a folder per source; every module with a ``THEOREM`` is registered."""
