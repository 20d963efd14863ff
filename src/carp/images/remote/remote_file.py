"""Requests to a server, through fsspec: what a file is, and ranges of its bytes.

Every request is tried several times with growing pauses (`decoding/transient.py`). The libraries below have retries of
their own, which are switched off.

File systems of fsspec belong to the process that made them, so none is kept here.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any, TypeVar

from carp.console.addresses import public, scheme_of
from carp.errors import DataError, MissingExtraError, StorageError
from carp.images.decoding.transient import retrying
from carp.images.remote.network_errors import as_os_error

CONNECT_SECONDS, READ_SECONDS = 15.0, 60.0  # without any byte; then a request counts as failed
_PACKAGES = {"gs": "gcs", "gcs": "gcs", "s3": "remote", "s3a": "remote", "http": "remote", "https": "remote"}  # extras
_VERSION_KEYS = ("ETag", "etag", "generation", "blob_id", "md5Hash", "Last-Modified", "LastModified", "mtime")
_ranges: dict[str, bool] = {}  # by scheme and host: whether the server answers range requests

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, as it was when it was found.

    Attributes:
        address: The address, possibly with secrets; `str` is the form for messages.
        size: Number of bytes.
        version: Changes with the content: the ETag, or whatever the server has instead.
    """

    address: str = field(repr=False)
    size: int
    version: str

    def __str__(self) -> str:
        return public(self.address)

    @property
    def key(self) -> str:
        """A hash of address, size and version."""
        return hashlib.sha256(f"{self.address}\0{self.size}\0{self.version}".encode()).hexdigest()[:40]


def ask(address: str, question: Callable[[Any, str], T]) -> T:
    """Return the answer to a question about (file system, path), asked again while the server or the network fails.

    Raises:
        StorageError: Every attempt failed.
        OSError: The server answered that the file is missing, forbidden or otherwise not available.
    """
    return retrying(partial(_ask_once, address, question), public(address))


def describe(address: str) -> RemoteFile:
    """Ask for the size and the version of a file."""
    return described(address, ask(address, _info))


def described(address: str, info: dict[str, Any]) -> RemoteFile:
    """Return a file from the information of fsspec about it."""
    if info.get("type") == "directory":
        raise OSError(errno.EISDIR, "it is a folder, not a file")
    if not isinstance(info.get("size"), int):
        raise OSError(errno.EINVAL, "the server does not report its size")
    version = next((str(info[key]).strip('"') for key in _VERSION_KEYS if info.get(key)), "")
    if not version:  # then nothing but the whole address distinguishes it
        version = hashlib.sha256(address.encode()).hexdigest()[:16]
    return RemoteFile(address, info["size"], version)


def surely(place: object, request: Callable[[], T]) -> T:
    """Return the answer to a request about images that were found before.

    A server that now refuses it, or no longer has the file, says nothing about an image: the run must stop.
    """
    try:
        return request()
    except OSError as error:
        raise refused(place, error) from None


def refused(place: object, error: OSError) -> StorageError:
    """Return the error for a server that refuses a request about images that were found before."""
    return StorageError(
        f"cannot read {place}: {error.strerror or error}. No image was marked as bad. Rerun the same command once it "
        "works; finished work is kept."
    )


def read_ranges(file: RemoteFile, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """Return ranges of the bytes of a file, requested at the same time."""
    if list(sizes) != [file.size] and not has_ranges(file.address):
        raise StorageError(f"cannot read {file}: it is not in the cache, and its server does not support range "
                           "requests. Raise cache_gb so that it fits.")  # fmt: skip

    def read(files: Any, path: str) -> list[bytes]:
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        found = files.cat_ranges([path] * len(starts), list(starts), ends, on_error="return")
        for answer, size in zip(found, sizes, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if len(answer) != size:
                raise ConnectionError(f"the answer was truncated: {len(answer):,} of {size:,} bytes")
        return list(found)

    return surely(file, partial(ask, file.address, read))


def has_ranges(address: str) -> bool:
    """Return whether the server sends ranges; only plain web servers may not. Each server is asked once."""
    if scheme_of(address) not in {"http", "https"}:
        return True
    host = "/".join(address.split("/", 3)[:3])
    if host not in _ranges:
        _ranges[host] = surely(public(address), partial(ask, address, _answers_ranges))
    return _ranges[host]


def stream(file: RemoteFile, descriptor: int) -> None:
    """Write all bytes of a file to a descriptor, from a server that does not support range requests."""

    def copy(files: Any, path: str) -> None:
        with open(descriptor, "wb", closefd=False) as out:
            out.seek(0)
            files.get_file(path, out)
            if (found := out.tell()) != file.size:
                raise ConnectionError(f"the answer was truncated: {found:,} of {file.size:,} bytes")

    surely(file, partial(ask, file.address, copy))


def _info(files: Any, path: str) -> dict[str, Any]:
    files.invalidate_cache()
    found: dict[str, Any] = files.info(path)
    return found


def _answers_ranges(files: Any, path: str) -> bool:
    from fsspec.asyn import sync  # noqa: PLC0415 - optional

    async def probe() -> bool:
        session = await files.set_session()
        headers = {**files.kwargs.get("headers", {}), "Range": "bytes=0-0"}
        async with session.get(files.encode_url(path), headers=headers) as answer:
            answer.raise_for_status()
            return bool(answer.status == 206)

    return bool(sync(files.loop, probe))


def _ask_once(address: str, question: Callable[[Any, str], T]) -> T:
    files, path = _file_system(address)
    try:
        return question(files, path)
    except Exception as error:  # of any library below fsspec
        raise as_os_error(error) from None


def _file_system(address: str) -> tuple[Any, str]:
    scheme = scheme_of(address)
    try:
        if scheme in {"gs", "gcs"}:
            files, path = _google_storage(address, _options(scheme))
        else:
            import fsspec.core  # noqa: PLC0415 - optional

            files, path = fsspec.core.url_to_fs(address, **_options(scheme))
    except ImportError:
        extra = f"'carp-ssl[{_PACKAGES[scheme]}]'" if scheme in _PACKAGES else f"the package of fsspec for {scheme}"
        raise MissingExtraError(
            f"{scheme}:// needs a package that is not installed. Run `pip install {extra}`."
        ) from None
    except ValueError:
        raise DataError(f"{scheme}:// in {public(address)} is not a protocol that fsspec knows: give an address "
                        "such as s3://, gs://, https:// or hf://datasets/OWNER/NAME.") from None  # fmt: skip
    if scheme in {"s3", "s3a"}:
        files.retries = 1
    if scheme == "hf":  # it prints every attempt, with addresses that may be signed
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return files, path


def _google_storage(address: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return gcsfs's file system over HTTP. Its default one uses gRPC, which does not survive a fork."""
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # do not even import gRPC
    from gcsfs.core import GCSFileSystem  # noqa: PLC0415 - optional

    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints every failed attempt with a traceback
    files = GCSFileSystem(**options)
    files._request = MethodType(GCSFileSystem._request.__wrapped__, files)  # without its six attempts
    return files, GCSFileSystem._strip_protocol(address)


def _options(scheme: str) -> dict[str, Any]:
    """Return options that make a request fail once and in time, merged with the user's configuration of fsspec."""
    from fsspec.config import conf  # noqa: PLC0415 - optional

    own: dict[str, Any] = conf.get(scheme, {})
    if scheme in {"gs", "gcs"}:
        return {"requests_timeout": _timeout(), **own}
    if scheme in {"http", "https"}:
        return {
            "client_kwargs": {"trust_env": True, "timeout": _timeout(), **own.get("client_kwargs", {})},
            "headers": {"Accept-Encoding": "identity", **own.get("headers", {})},  # sizes are those of the files
        }
    if scheme in {"s3", "s3a"}:
        limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
        once = {"retries": {"mode": "standard", "total_max_attempts": 1}}
        return {"config_kwargs": {**limits, **once, **own.get("config_kwargs", {})}}
    return {}


def _timeout() -> Any:
    from aiohttp import ClientTimeout  # noqa: PLC0415 - optional

    return ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
