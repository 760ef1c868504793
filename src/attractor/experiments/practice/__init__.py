"""Theory against practice: what the weights of real models promise, and what their tokens do."""
