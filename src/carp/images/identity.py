"""Which images something was computed from, as a feature store records it."""

from collections.abc import Mapping
from typing import Any

from carp.images.source import Source


def describe_data(source: Source) -> dict[str, Any]:
    """Return the name of the images and what identifies them."""
    return {
        "name": source.name,
        "fingerprint": source.fingerprint,
        "sample": source.sample,
        "images": len(source),
    }


def is_same_data(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions are of the same images. Without a sample, their fingerprints decide."""
    samples = {data["sample"] for data in (one, other) if "sample" in data}
    return bool(one["fingerprint"] == other["fingerprint"]) and len(samples) < 2
