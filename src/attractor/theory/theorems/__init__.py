"""Theorems, one file each, in a folder for each source; adding a file is all it takes."""
