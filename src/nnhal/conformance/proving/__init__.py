"""Verifies kernel variants on this processor.

`hard` makes calls, `comparison` runs one, `worker` runs all, `run` judges and stores results.
"""
