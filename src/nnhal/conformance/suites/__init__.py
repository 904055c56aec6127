"""The suites of `nnhal test`: each tests one side of a driver, with the same processes, outcomes and reports."""
