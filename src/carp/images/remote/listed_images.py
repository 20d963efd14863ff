"""Lists on a server, and the images that a list names by their addresses.

An image is requested on its own whenever it is needed; only shards are cached.
"""

import re
from pathlib import PurePosixPath
from urllib.parse import quote

from carp.console.addresses import is_address, public, scheme_of
from carp.errors import DataError, UnreadableImageError
from carp.images.decoding.decode_limits import check_bytes, out_of_memory
from carp.images.remote.remote_file import describe, read_ranges, refused
from carp.images.remote.shard import RemoteShard
from carp.images.remote.shard_cache import ShardCache

_SERVERS = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "hf", "az", "abfs", "abfss"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def open_list(address: str, cache_gb: float | None) -> RemoteShard:
    """Return the list at an address."""
    try:
        return RemoteShard(describe(address), ShardCache.of(cache_gb))
    except OSError as error:
        raise DataError(f"cannot read {public(address)}: {error.strerror or error}. Check the address.") from None


def check_listed(path: str, place: str, *, remote: bool) -> None:
    """Raise if a list names what it may not: chained addresses, other protocols and, from a server, local files."""
    if scheme_of(path) in _SERVERS and "::" not in path:
        return
    if is_address(path):
        raise DataError(
            f"{place}: '{public(path)}' is not an address that a list may contain. Use https://, s3://, gs://, hf:// or az://."
        )
    if not remote:
        return
    if _SCHEME.match(path) or "::" in path or path.startswith(("/", "\\", "~")):
        raise DataError(
            f"{place}: '{public(path)}' is not on a server, and a remote list may not name files on this machine. Use "
            "addresses (https://, s3://, gs://) or paths relative to the list; or download the list if you trust it."
        )


def beside(file: RemoteShard, path: str) -> str:
    """Return the address of a path relative to a remote list; a signature is valid for the list alone."""
    address = file.file.address
    if scheme_of(address).startswith("http"):
        address, path = address.partition("?")[0], quote(path, safe="/")
    return f"{address.rpartition('/')[0]}/{PurePosixPath(path)}"


def read_image(address: str) -> bytes:
    """Return the bytes of an image, which must not be too large for an image."""
    place = public(address)
    try:
        file = describe(address)
    except FileNotFoundError:
        raise UnreadableImageError(place, "there is no such file") from None
    except PermissionError as error:
        if scheme_of(address).startswith("http"):  # a web server refuses single files; a store refuses credentials
            raise UnreadableImageError(place, str(error.strerror)) from None
        raise refused(place, error) from None
    except OSError as error:
        raise UnreadableImageError(place, error.strerror or str(error)) from None
    check_bytes(file.size, place)
    try:
        return read_ranges(file, [0], [file.size])[0] if file.size else b""
    except MemoryError:
        raise out_of_memory(place) from None
