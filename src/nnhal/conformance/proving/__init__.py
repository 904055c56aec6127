"""Verifies kernel variants on this processor: `hard` makes calls, `worker` runs them, `run` judges and stores results."""
