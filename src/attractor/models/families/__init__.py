"""Families of models: one file each; a new file in this folder is a new family."""
