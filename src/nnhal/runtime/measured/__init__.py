"""Measurements on this machine, and their use in placement."""
