"""The ZIP archives that `torch.save` writes: where their members lie, once the directory is known to be true."""

import struct
import zipfile
import zlib
from dataclasses import dataclass
from mmap import ACCESS_COPY, mmap
from pathlib import Path

from carp.files.regular import check_regular, open_regular
from carp.restricted.budget import Damaged, Refused

_LARGEST_DIRECTORY = 2**24  # bytes: more than 100,000 members
_TAIL = 22 + 2**16  # where the end of the directory is found
_ENCRYPTED = 1
_LARGEST_PICKLE = 2**28


@dataclass(frozen=True)
class Member:
    """Bytes of the file that are a member's."""

    start: int
    size: int
    checksum: int  # 0 where the writer left it out


class Archive:
    """A file that is mapped, not read: only what is looked at takes memory."""

    def __init__(self, path: Path) -> None:
        self.size = check_regular(path)
        self.mapped = map_file(path)
        self.members = self._members(path)

    def read(self, name: str) -> bytes:
        """A member's bytes, checked."""
        member = self.members[name]
        if member.size > _LARGEST_PICKLE:
            raise Refused(f"{name[:80]} has {member.size:,} bytes, at most {_LARGEST_PICKLE:,} are read")
        self.check(member, name)
        return self.mapped[member.start : member.start + member.size]

    def check(self, member: Member, name: str) -> None:
        """Compare a member with its checksum."""
        with memoryview(self.mapped) as view, view[member.start : member.start + member.size] as part:
            if member.checksum and zlib.crc32(part) != member.checksum:
                raise Damaged(f"the checksum of {name[:80]} is wrong")

    def pickle_name(self) -> str | None:
        """The one pickle of an archive that torch.save wrote."""
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
                f"it has {self.size:,} bytes and would unpack to {claimed:,}; torch.save never compresses. Get the "
                "file from its source page again"
            )
        members: dict[str, Member] = {}
        for member in found:
            if member.filename in members or member.flag_bits & _ENCRYPTED or member.file_size != member.compress_size:
                raise Refused(f"{member.filename[:80]} is there twice, encrypted or of two sizes")
            start = self._start(member.header_offset)
            if not 0 <= member.file_size <= self.size - start:
                raise Damaged(f"{member.filename[:80]} reaches behind the end of the file")
            members[member.filename] = Member(start, member.file_size, member.CRC)
        return members

    def _start(self, header: int) -> int:
        """Where a member's bytes begin: behind its own header, its name and what is added to that."""
        if not 0 <= header <= self.size - 30 or self.mapped[header : header + 4] != b"PK\x03\x04":
            raise Damaged("its ZIP directory names a place where nothing begins")
        name, extra = struct.unpack("<HH", self.mapped[header + 26 : header + 30])
        start: int = header + 30 + name + extra
        if start > self.size:
            raise Damaged("a member begins behind the end of the file")
        return start

    def _check_directory(self) -> None:
        """Its size, before anything is made of it."""
        tail = self.mapped[max(0, self.size - _TAIL) :]
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) - end < 22:
            raise Damaged("its ZIP directory is missing")
        (length,) = struct.unpack("<I", tail[end + 12 : end + 16])
        large = tail.rfind(b"PK\x06\x06")
        if large >= 0 and len(tail) - large >= 56:
            length = max(length if length != 0xFFFFFFFF else 0, struct.unpack("<Q", tail[large + 40 : large + 48])[0])
        if length > _LARGEST_DIRECTORY:
            raise Refused(f"its ZIP directory claims {length:,} bytes")


def map_file(path: Path) -> mmap:
    """The bytes of a file, without reading them; changes stay in memory."""
    with open_regular(path) as file:
        return mmap(file.fileno(), 0, access=ACCESS_COPY)


def pickle_contains(path: Path, text: bytes) -> bool:
    """Whether the pickle of an archive has these bytes; False for whatever is no such archive."""
    try:
        archive = Archive(path)
        name = archive.pickle_name()
        return name is not None and text in archive.read(name)
    except (OSError, ValueError, Refused, Damaged):
        return False
