"""Settings of the machine: processes, device, threads, precision."""

from typing import Annotated, Literal

from pydantic import Field

from carp.config.field_types import MOST_MINUTES, Settings


class ProcessSettings(Settings):
    """How the processes of one run work together."""

    sync_batch_norm: bool = Field(
        True,
        description="Whether batch norm sees the images of all processes (torchrun); false is faster, and the result "
        "then depends on the number of processes.",
    )
    timeout_minutes: float = Field(
        10.0,
        gt=0,
        le=MOST_MINUTES,
        description="Minutes that a process waits for another one before the run is aborted: longer than the slowest "
        "checkpoint, and short enough for a cluster that is paid by the hour.",
    )


class DeviceSettings(Settings):
    """Where and how tensors are computed."""

    device: str = Field("auto", description="cpu, cuda, cuda:1 or mps; auto selects the fastest available device.")
    threads: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        "auto",
        description="Threads on a CPU; auto finds the best number, adapts it to the load of the machine and records "
        "it in threads.jsonl. OMP_NUM_THREADS in the environment also fixes it.",
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        "fp32",
        description="bf16 and fp16 are faster where the processor supports them; auto is half precision there, and "
        "fp32 elsewhere. fp16 scales the loss, and skips steps whose gradient overflows. tf32 is fp32 with factors of "
        "products (encoder and head) rounded to 10 bits of mantissa: only for Nvidia GPUs since Ampere.",
    )
    deterministic: bool = Field(
        False,
        description="Use only operations that give the same bits every time. A CPU always does; on a GPU, convolutions "
        "and sums are slower, and an encoder that needs an operation without such a version is refused.",
    )
    channels_last: bool = Field(True, description="Memory layout of images; true is faster for convolutions.")
    compile: bool = Field(
        False,
        description="Compile encoders and projectors: a slow start, then possibly faster steps (1.03 times as fast for "
        "ResNet-18 at 224 pixels on a CPU). What cannot be compiled is an error; networks with batch norm over several "
        "processes are left out with a warning.",
    )

    @property
    def half(self) -> bool:
        """Whether networks compute in half precision."""
        return self.precision in {"bf16", "fp16"}
