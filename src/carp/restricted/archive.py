"""The ZIP archives that `torch.save` writes: finds their members and verifies their directory."""

import struct
import zipfile
import zlib
from dataclasses import dataclass
from mmap import ACCESS_COPY, mmap
from pathlib import Path

from carp.files.regular import check_regular, open_regular
from carp.restricted.budget import Damaged, Refused

_LARGEST_DIRECTORY = 2**24  # bytes: more than 100,000 members
_TAIL = 22 + 2**16  # bytes at the end of the file that include the end-of-directory record
_ENCRYPTED = 1
_LARGEST_PICKLE = 2**28


@dataclass(frozen=True)
class Member:
    """Position and size of a member's bytes in the file."""

    start: int
    size: int
    checksum: int  # 0 where the writer left it out


class Archive:
    """A memory-mapped archive: only the bytes that are used take memory."""

    def __init__(self, path: Path) -> None:
        self.size = check_regular(path)
        self.mapped = map_file(path)
        self.members = self._members(path)

    def read(self, name: str) -> bytes:
        """Return the bytes of a member after verifying its checksum."""
        member = self.members[name]
        if member.size > _LARGEST_PICKLE:
            raise Refused(f"{name[:80]} has {member.size:,} bytes; the limit is {_LARGEST_PICKLE:,}")
        self.check(member, name)
        return self.mapped[member.start : member.start + member.size]

    def check(self, member: Member, name: str) -> None:
        """Compare a member with its checksum."""
        with memoryview(self.mapped) as view, view[member.start : member.start + member.size] as part:
            if member.checksum and zlib.crc32(part) != member.checksum:
                raise Damaged(f"the checksum of {name[:80]} is wrong")

    def pickle_name(self) -> str | None:
        """Return the name of the archive's pickle, or None if torch.save did not write the archive."""
        names = [name for name in self.members if name.endswith("/data.pkl") or name == "data.pkl"]
        return names[0] if len(names) == 1 else None

    def _members(self, path: Path) -> dict[str, Member]:
        self._check_directory()
        try:
            with zipfile.ZipFile(path) as archive:
                found = archive.infolist()
        except Exception as error:  # a damaged directory can fail in any way
            raise Damaged(f"its ZIP directory cannot be read: {error}") from None
        claimed = sum(member.file_size for member in found)
        if claimed > self.size or any(m.compress_type != zipfile.ZIP_STORED for m in found):
            raise Refused(
                f"it has {self.size:,} bytes but would unpack to {claimed:,}, and torch.save never compresses. "
                "Download the file from its source page again"
            )
        members: dict[str, Member] = {}
        for member in found:
            if member.filename in members or member.flag_bits & _ENCRYPTED or member.file_size != member.compress_size:
                raise Refused(f"{member.filename[:80]} is duplicated, encrypted or has two sizes")
            start = self._start(member.header_offset)
            if not 0 <= member.file_size <= self.size - start:
                raise Damaged(f"{member.filename[:80]} extends beyond the end of the file")
            members[member.filename] = Member(start, member.file_size, member.CRC)
        return members

    def _start(self, header: int) -> int:
        """Return where a member's bytes begin: after its header, its name and its extra field."""
        if not 0 <= header <= self.size - 30 or self.mapped[header : header + 4] != b"PK\x03\x04":
            raise Damaged("its ZIP directory points to a position without a member")
        name, extra = struct.unpack("<HH", self.mapped[header + 26 : header + 30])
        start: int = header + 30 + name + extra
        if start > self.size:
            raise Damaged("a member begins beyond the end of the file")
        return start

    def _check_directory(self) -> None:
        """Check the size of the directory before it is parsed."""
        tail = self.mapped[max(0, self.size - _TAIL) :]
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) - end < 22:
            raise Damaged("its ZIP directory is missing")
        (length,) = struct.unpack("<I", tail[end + 12 : end + 16])
        large = tail.rfind(b"PK\x06\x06")
        if large >= 0 and len(tail) - large >= 56:
            length = max(length if length != 0xFFFFFFFF else 0, struct.unpack("<Q", tail[large + 40 : large + 48])[0])
        if length > _LARGEST_DIRECTORY:
            raise Refused(f"its ZIP directory claims {length:,} bytes; the limit is {_LARGEST_DIRECTORY:,}")


def map_file(path: Path) -> mmap:
    """Map a file into memory; changes are not written to it."""
    with open_regular(path) as file:
        return mmap(file.fileno(), 0, access=ACCESS_COPY)


def pickle_contains(path: Path, text: bytes) -> bool:
    """Return whether the pickle of an archive contains these bytes; False if the file is not such an archive."""
    try:
        archive = Archive(path)
        name = archive.pickle_name()
        return name is not None and text in archive.read(name)
    except (OSError, ValueError, Refused, Damaged):
        return False
