"""How much memory and depth a file from elsewhere may take, and the two ways in which it can fail."""

MEBIBYTE = 2**20
VALUES = 256 * MEBIBYTE
"""Declared for the plain values of one file: several times the largest that is published."""
DEPTH = 100
"""Lists inside lists; published files have fewer than ten."""


class Refused(Exception):  # noqa: N818 - turned into the error of the command that names the file
    """The file asks for something that it must not have."""


class Damaged(Exception):  # noqa: N818
    """The file is not what it says it is, or not all of it is there."""


class Budget:
    """Bytes that the values of a file may take in memory, estimated from above."""

    def __init__(self, memory: int = VALUES) -> None:
        self.memory, self.used = memory, 0

    def charge(self, size: int) -> None:
        """Ask for memory before it is taken."""
        self.used += size
        if self.used > self.memory:
            raise Refused(f"its values need more than {self.memory // MEBIBYTE:,} MiB of memory")
