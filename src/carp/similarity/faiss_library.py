"""The optional library faiss."""

from typing import Any

from carp.errors import MissingExtraError


def load_faiss(what: str) -> Any:
    """Import faiss; if it is not installed, the error says that `what` needs it and how to install it."""
    try:
        import faiss  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError(f"{what} needs faiss. Run `pip install 'carp-ssl[eval]'`.") from None
    return faiss
