"""The kinds of model inputs."""

from typing import Literal

Kind = Literal["picture", "audio", "features"]
