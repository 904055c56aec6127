"""Reports of `nnhal test`: expected failures, groups of failures by likely cause, and the files of `--report`."""
