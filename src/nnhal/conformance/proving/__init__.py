"""Which form of an operation is right on this processor: `hard` calls, run by a `worker`, judged and kept by `run`."""
