"""`carp push`: upload an encoder with its model card to the Hugging Face Hub."""

import os
import re
import tempfile
from pathlib import Path

from carp.commands.export import export
from carp.errors import ConfigError, DataError, received

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def push(
    model: str | Path,
    repository: str,
    *,
    branch: str = "teacher",
    epoch: int | None = None,
    private: bool = False,
    message: str = "Encoder trained by CARP",
) -> str:
    """Export an encoder as `format="hf"` does and upload the folder to the Hugging Face Hub.

    The upload needs a network connection and a token with write access: run `hf auth login`, or set HF_TOKEN.

    Args:
        model: A run folder, `RUN@25`, or weights: FILE or METHOD:FILE (`carp weights`).
        repository: OWNER/NAME; it is created if it does not exist.
        branch: Encoder of a run: `teacher` or `student`.
        epoch: The epoch of the run, another way to write `RUN@EPOCH`. None is the newest checkpoint.
        private: Create a private repository.
        message: The commit message.

    Returns:
        The address of the repository.
    """
    if not _NAME.fullmatch(repository):
        raise ConfigError(f"a repository is OWNER/NAME, such as jane/bird-encoder, received {received(repository)}.")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    with tempfile.TemporaryDirectory(prefix="carp-push-") as scratch:
        folder = export(model, Path(scratch) / "encoder", format="hf", branch=branch, epoch=epoch).path
        try:
            hub = HfApi()
            address = hub.create_repo(repository, private=private, exist_ok=True)
            hub.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
        except LocalTokenNotFoundError:
            raise DataError(
                "the Hugging Face Hub needs a token to upload. Run `hf auth login`, or set HF_TOKEN."
            ) from None
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else "no answer"
            raise DataError(
                f"the Hugging Face Hub refused the upload to {repository} ({status}). Check that the token may write "
                "there (`hf auth whoami`)."
            ) from error
        except Exception as error:  # the libraries below have their own errors for a lost connection
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"cannot reach the Hugging Face Hub: {reason}. Nothing was uploaded. Rerun the command with a network, "
                "or use `carp export --format hf` and upload the folder yourself."
            ) from error
    return str(address)
