"""Verbose logging by tag, as NNAPI's VLOG: `NNHAL_VLOG="model compilation"`, separated by space, comma or colon.

Tags: model, compilation, execution, cpuexe, manager, driver, memory, burst; `all` or `1` for all of them. A tag is the
`logging` logger `nnhal.<tag>`, at DEBUG if the tag is set. The application's loggers do not change.
"""

import logging
import os
import re
from functools import cache

TAGS = ("model", "compilation", "execution", "cpuexe", "manager", "driver", "memory", "burst")
VARIABLE = "NNHAL_VLOG"


def logger(tag: str) -> logging.Logger:
    """Return the logger of a tag; ValueError lists the tags."""
    if tag not in TAGS:
        raise ValueError(f"log tag is {tag!r}, must be one of {', '.join(TAGS)}")
    return logging.getLogger(f"nnhal.{tag}")


@cache
def warn_once(log: logging.Logger, text: str, about: str = "") -> None:
    """Log a warning once in a process. about: what else it is about, if the text does not name it."""
    log.warning("%s", text)


def enable(text: str) -> list[str]:
    """Set the named tags to DEBUG and give them a handler; return the tags. Unknown words cause a warning."""
    words = [word for word in re.split(r"[ ,:]+", text.strip()) if word]
    tags = list(TAGS) if {"all", "1"} & set(words) else [word for word in words if word in TAGS]
    for word in set(words) - set(TAGS) - {"all", "1"}:
        logging.getLogger("nnhal").warning("%s: is %r, must be one of %s", VARIABLE, word, ", ".join(TAGS))
    if tags and not logging.getLogger("nnhal").handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
        logging.getLogger("nnhal").addHandler(handler)
    for tag in tags:
        logger(tag).setLevel(logging.DEBUG)
    return tags


enable(os.environ.get(VARIABLE, ""))
