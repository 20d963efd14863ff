"""The unit length of prototypes against `F.normalize`, and its gradient against autograd and finite differences."""

import pytest
import torch
from torch.nn import functional as F

from carp.model import assigner
from carp.model.assigner import Assigner, unit_rows


def rows(count, dimensions, dtype=torch.float32):
    return 3 * torch.randn(count, dimensions, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [1, 5, 1024, 2500])  # with 128 dimensions, up to three chunks, the last one smaller
def test_values_and_gradients_equal_those_of_normalise(count):
    x, upstream = rows(count, 128), rows(count, 128).flip(0)
    found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, theirs = unit_rows(found), F.normalize(wanted, dim=-1)
    assert torch.equal(ours, theirs)
    ours.backward(upstream)
    theirs.backward(upstream)
    torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-5, atol=1e-6)


def test_the_gradient_equals_finite_differences_whatever_the_chunks(monkeypatch):
    monkeypatch.setattr(assigner, "_CHUNK_ELEMENTS", 12)  # two rows
    assert torch.autograd.gradcheck(unit_rows, [rows(5, 6, torch.float64).requires_grad_()])


def test_more_dimensions_than_a_chunk_has_elements(monkeypatch):
    monkeypatch.setattr(assigner, "_CHUNK_ELEMENTS", 4)
    assert torch.autograd.gradcheck(unit_rows, [rows(3, 6, torch.float64).requires_grad_()])


def test_a_gradient_that_is_expanded_is_not_written_to():
    x = rows(4, 3).requires_grad_()
    unit_rows(x).sum().backward()
    wanted = rows(4, 3).requires_grad_()
    F.normalize(wanted, dim=-1).sum().backward()
    torch.testing.assert_close(x.grad, wanted.grad)


def test_the_gradient_given_does_not_change():
    x, upstream = rows(4, 3).requires_grad_(), rows(4, 3)
    unit_rows(x).backward(upstream)
    assert torch.equal(upstream, rows(4, 3))


def test_a_row_of_zeros_stays_one_and_its_gradient_is_finite():
    x = torch.zeros(2, 3, requires_grad=True)
    unit = unit_rows(x)
    assert torch.equal(unit, torch.zeros(2, 3))
    unit.backward(torch.ones(2, 3))
    wanted = torch.zeros(2, 3, requires_grad=True)
    F.normalize(wanted, dim=-1).backward(torch.ones(2, 3))
    assert torch.equal(x.grad, wanted.grad)


def test_prototypes_of_an_assigner_have_unit_length():
    lengths = Assigner(40, 7)().norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(40))


def test_autocast_leaves_prototypes_and_their_gradient_in_fp32():
    made = Assigner(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        unit = made()
    assert unit.dtype == torch.float32
    unit[:, 0].sum().backward()
    assert made.directions_KD.grad.dtype == torch.float32
