"""The papers' figures and tables, from one command each."""
