"""Programs that find more the longer they run: simulation, random models, storms of signals and of processes.

`./check --nightly` runs each at length, a test of the package that it is about for a moment.
"""
