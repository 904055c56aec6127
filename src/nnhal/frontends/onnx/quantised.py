"""Entries of quantised nodes."""
