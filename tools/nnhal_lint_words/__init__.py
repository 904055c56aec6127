"""Checks the project's words: `python -m nnhal_lint_words` in the root of the repository.

`passages` finds prose in Python files and Markdown pages, `rules` holds the words and measures that it is checked for.
"""
