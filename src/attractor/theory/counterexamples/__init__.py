"""Systems that refute published claims, one file each; every module with an ``EXAMPLE`` is registered."""
