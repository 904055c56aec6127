"""The suites of `nnhal test`: each proves one side of a driver, with the same processes, outcomes and reports."""
