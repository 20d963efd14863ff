"""Addresses such as `s3://bucket/a.tar`: their parts, and their form without secrets for messages and files.

An address may contain a password (`https://user:password@host/a.tar`) or a signature (`https://host/a.tar?Signature=…`).
Neither is ever printed or written: everything that is passes through `without_secrets`.
"""

import re

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*")
_SIGNATURE = re.compile(r"\?[\w.%-]+=[^\s'\"<>]*")  # of an address that has spaces
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"[?#].*")
_PARAMETERS = re.compile(r"\?[^?]*=.*")  # elsewhere than on the web, `?` alone is a wildcard, and `#` part of a name
_LOCAL = ("file://", "local://")


def is_address(data: object) -> bool:
    """Return whether data are the address of something that is read through a network, such as `s3://bucket/a.tar`."""
    return isinstance(data, str) and _SCHEME.match(data) is not None and not data.startswith(_LOCAL)


def scheme_of(address: str) -> str:
    """Return `s3` for `s3://bucket/a.tar`."""
    found = _SCHEME.match(address)
    return found.group(1).lower() if found else ""


def as_local(text: str) -> str:
    """Return the path of `file:///data/a.tar`, and any other text as it is."""
    prefix = next((prefix for prefix in _LOCAL if text.startswith(prefix)), "")
    return text.removeprefix(prefix)


def public(address: str) -> str:
    """Return an address without password, query and fragment."""
    links = _PASSWORD.sub("", address).split("::")  # fsspec chains addresses: zip://a.tar::https://host/b.zip
    return "::".join((_QUERY if scheme_of(link).startswith("http") else _PARAMETERS).sub("", link) for link in links)


def without_secrets(text: str) -> str:
    """Replace every address in a text by its public form."""
    if "://" not in text:
        return text
    return _SIGNATURE.sub("", _ADDRESS.sub(lambda found: public(found.group()), text))


def last_name(address: str) -> str:
    """Return the name after the last slash, without the query."""
    return public(address).partition("::")[0].rstrip("/").rpartition("/")[2]
