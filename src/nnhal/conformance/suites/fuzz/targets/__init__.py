"""The targets: each runs one kind of input."""
