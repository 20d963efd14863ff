"""Errors of the libraries that talk to servers, as `OSError`: transient or not, and without secrets in their text."""

import errno

from carp.console.addresses import without_secrets
from carp.images.decoding.transient import TRANSIENT

_NO_CREDENTIALS = ("NoCredentials", "PartialCredentials", "DefaultCredentials", "TokenRetrieval", "RefreshError")
_NETWORK_LIBRARIES = frozenset(
    {"aiohttp", "botocore", "aiobotocore", "gcsfs", "google", "httpcore", "httpx", "huggingface_hub", "requests", "ssl"}
    | {"urllib3", "httpx2", "httpcore2"}
)
_TRY_AGAIN = frozenset({408, 425, 429})  # of the answers 4xx


def as_os_error(error: BaseException) -> OSError:  # noqa: PLR0911 - one line per kind
    """Return the error of a library as an OSError that is transient or not, without secrets."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:  # fsspec reports any failure as this
        error = error.__cause__
    name, text = type(error).__name__, _text(error)
    status = _status(error)
    if status is not None and status >= 400:
        return _of_status(status)
    if isinstance(error, FileNotFoundError):
        return _of_status(404)
    if type(error) is OSError and text.startswith("Forbidden"):  # of gcsfs
        return _of_status(403)
    if isinstance(error, PermissionError) or name.startswith(_NO_CREDENTIALS):
        return PermissionError(errno.EACCES, f"access is refused ({text}); check the credentials")
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return TimeoutError("the server did not answer in time")
    if isinstance(error, OSError) and error.errno in TRANSIENT:
        return OSError(error.errno, text)
    if isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] in _NETWORK_LIBRARIES:
        return ConnectionError(text)
    return OSError(errno.EINVAL, text)


def _of_status(status: int) -> OSError:
    if status in {404, 410}:
        return FileNotFoundError(errno.ENOENT, "there is no such file")
    if status in {401, 403}:
        return PermissionError(errno.EACCES, f"access is refused (status {status}); check the credentials")
    if status in _TRY_AGAIN or status >= 500:
        return ConnectionError(f"the server answered with status {status}")
    return OSError(errno.EINVAL, f"the server answered with status {status}")


def _status(error: BaseException) -> int | None:
    """Return the status of an answer: aiohttp's `status`, gcsfs's `code`, botocore's dictionary, or `response`'s."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        known = (getattr(error, "status", None), getattr(error, "code", None), getattr(response, "status_code", None))
        found = next((value for value in known if isinstance(value, int)), None)
    return found if isinstance(found, int) else None


def _text(error: BaseException) -> str:
    text = str(getattr(error, "strerror", None) or error)
    return without_secrets(" ".join(text.split())).rstrip(".") or type(error).__name__
