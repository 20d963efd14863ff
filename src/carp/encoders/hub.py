"""`hf:OWNER/NAME`: the weights of a timm model on the Hugging Face Hub, downloaded into its cache."""

import re
from functools import cache
from pathlib import Path

from carp.errors import CheckpointError, received

HUB = "hf:"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["config.json", "model.safetensors", "pytorch_model.bin"]


@cache
def hub_folder(repository: str) -> Path:
    """Return the folder with the files of a repository; a copy in the cache is enough where the Hub is out of reach."""
    if not _NAME.fullmatch(repository):
        raise CheckpointError(
            f"a repository of the Hugging Face Hub is written hf:OWNER/NAME, received {received(HUB + repository)}."
        )
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow, and used here only
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        return Path(snapshot_download(repository, allow_patterns=_FILES))
    except (
        OSError,
        ValueError,
        RuntimeError,
        HfHubHTTPError,
    ) as error:  # also what its HTTP client raises
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{HUB}{repository} cannot be downloaded: {type(error).__name__}, {reason} Check the name and the network, "
            "or download its files elsewhere and give their folder."
        ) from error
