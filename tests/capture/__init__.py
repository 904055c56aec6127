"""Tests of captures and their replay."""
