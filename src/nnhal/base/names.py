"""Names that files give: data, which may hold anything. What is shown of them commands no terminal and no picture."""


def printable(text: str, keep: str = "") -> str:
    r"""Text as it may stand on a terminal: escapes, controls, bidirectional overrides and the like are `\x1b`, `\u202e`.

    keep: characters that are left as they are, such as the ends of lines that the caller wrote.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
