"""Families of models, close relatives in one file; they are found by importing every file of this folder."""
