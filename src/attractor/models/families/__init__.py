"""Families of models, one file each; they are found by importing every file of this folder."""
