"""Small changes of meaning, one at a time, and whether the tests notice: `python -m tests.mutants`."""
