"""HAL versions: NN HAL 1.0 to 1.3, then the feature levels 5 to 8 that came after HIDL.

A level is an integer: compliance is a comparison, and the level of a model is a maximum.
"""

from enum import IntEnum


class Level(IntEnum):
    """A version of the driver interface. The value is the NNAPI feature level: 1 for HAL 1.0 up to 8."""

    V1_0 = 1
    V1_1 = 2
    V1_2 = 3
    V1_3 = 4
    FL5 = 5
    FL6 = 6
    FL7 = 7
    FL8 = 8

    def __str__(self) -> str:
        return f"1.{self - 1}" if self <= Level.V1_3 else f"feature level {int(self)}"

    @classmethod
    def parse(cls, text: str) -> "Level":
        """Parse a HAL version or feature level.

        Args:
            text: `1.2`, `V1_2`, `FL6` or `6`.

        Raises:
            ValueError: The text is not a level; the message lists what is accepted.
        """
        wanted = text.strip().upper().replace(".", "_").removeprefix("V")
        for level in cls:
            names = {level.name, level.name.removeprefix("V")}
            if level > Level.V1_3:
                names.add(str(int(level)))
            if wanted in names:
                return level
        raise ValueError(f"level is {text!r}, must be one of 1.0, 1.1, 1.2, 1.3, 5, 6, 7, 8")


V1_0, V1_1, V1_2, V1_3 = Level.V1_0, Level.V1_1, Level.V1_2, Level.V1_3
FL5, FL6, FL7, FL8 = Level.FL5, Level.FL6, Level.FL7, Level.FL8
# By AOSP's names of the versions: V1_0 to V1_3, then AIDL_V1 to AIDL_V4
VERSIONS = {level.name if level <= V1_3 else f"AIDL_V{level - V1_3}": level for level in Level}
