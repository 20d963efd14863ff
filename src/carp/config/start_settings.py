"""Settings of a run that starts from weights."""

from pydantic import Field

from carp.config.field_types import Settings


class StartSettings(Settings):
    """Where the encoder's first weights come from."""

    start: str | None = Field(
        None,
        description="Weights that the encoder starts from (--from): a run folder, or weights in any form (docs/"
        "weights.md). The encoder, mean, deviation and interpolation follow from them. null: random weights.",
    )
    start_digest: str | None = Field(
        None, description="SHA-256 of the encoder's tensors in start; CARP records it, so leave it out."
    )
