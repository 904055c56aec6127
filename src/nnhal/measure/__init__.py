"""Measurement of engines: called directly, and how long calls take. `bench` and `conformance` both use it."""
