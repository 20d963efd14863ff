"""How certain assignments are, against a restatement with loops."""

import math

import pytest
import torch

from carp.model.certainty import certainty
from carp.model.partition import random_partition


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_certainty_is_that_of_every_block(block_size: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carp.model.certainty._PROTOTYPES_AT_A_TIME", 24)  # several parts, the last one smaller
    generator = torch.Generator().manual_seed(0)
    x_MD, prototypes_KD = scale * torch.randn(5, 8, generator=generator), torch.randn(64, 8, generator=generator)
    partition_PN = random_partition(64, block_size, generator=generator)
    largest, entropy = [], []
    for x in x_MD:
        for block in partition_PN:
            logits = [float(prototypes_KD[k] @ x) for k in block] + ([0.0] if block_size == 1 else [])
            powers = [math.exp(logit - max(logits)) for logit in logits]
            shares = [power / sum(powers) for power in powers]
            largest.append(max(shares))
            entropy.append(-sum(share * math.log(share) for share in shares if share > 0))
    found = certainty(x_MD, prototypes_KD, partition_PN)
    assert found.largest == pytest.approx(sum(largest) / len(largest), rel=1e-4)
    limit = math.log(max(2, block_size))
    assert found.entropy == pytest.approx(sum(entropy) / len(entropy) / limit, rel=1e-3, abs=1e-5)
    if scale == 0:
        assert found == pytest.approx((1 / max(2, block_size), 1.0))
