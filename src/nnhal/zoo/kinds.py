"""What goes into models."""

from typing import Literal

Kind = Literal["picture", "audio", "features"]
