"""Limits on the memory and nesting of an untrusted file, and the two ways in which reading one can fail."""

MEBIBYTE = 2**20
VALUES = 256 * MEBIBYTE
"""Memory for the plain values of one file: several times what the largest published file needs."""
DEPTH = 100
"""Nesting of lists; published files have fewer than ten levels."""


class Refused(Exception):  # noqa: N818 - the caller turns it into an error that names the file
    """The file asks for something that is not allowed."""


class Damaged(Exception):  # noqa: N818
    """The file contradicts itself or is incomplete."""


class Budget:
    """Bytes of memory that the values of a file may take; the use is overestimated."""

    def __init__(self, memory: int = VALUES) -> None:
        self.memory, self.used = memory, 0

    def charge(self, size: int) -> None:
        """Account for memory before it is allocated."""
        self.used += size
        if self.used > self.memory:
            raise Refused(f"its values need more memory than the limit of {self.memory // MEBIBYTE:,} MiB")
