"""The version of nnhal."""

__version__ = "0.1.0"
