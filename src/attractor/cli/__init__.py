"""The command line: one file per command. The entry point is :func:`attractor.cli.main.main`."""
