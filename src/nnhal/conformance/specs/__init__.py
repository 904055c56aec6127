"""AOSP's test specifications (`*.mod.py`), read into the format of test vectors.

    folder of specifications ──► source ──► language, graph, variations ──► expansion ──► document ──► archive
                                 restricted  what a specification names      each test     JSON, blob   zips, index

`source` evaluates a specification with no access to files, modules or Python's internals. `process` does that in a sandboxed
process with a limit of time and memory. The language is that of NNAPI's test generator; its names are kept.
"""
