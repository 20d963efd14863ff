"""Encoder, projector, assigner, and what passes between student and teacher."""

import numpy as np
import pytest
import torch
from torch import nn

from carp.config import Config
from carp.errors import ModelError
from carp.model.assigner import Assigner
from carp.model.branch import Branch
from carp.model.carp import Carp
from carp.model.encoder import build_encoder, num_features
from carp.model.projector import Projector
from tests.reference import carp_numpy

TINY = {
    "encoder": "resnet18",
    "encoder_options": {"channels": (4, 4, 8, 8)},
    "global_size": 16,
    "local_size": 8,
    "projector_hidden": 16,
    "embedding": 6,
    "num_prototypes": 12,
    "block_size": 4,
    "batch_size": 8,
}


def config(**settings):
    return Config(**{**TINY, **settings})


def model(**settings):
    torch.manual_seed(0)
    return Carp(config(**settings)).train()


def views(*sizes, images=4):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(images, 3, size, size, generator=g) for size in sizes]


class Calls:
    """Counts the forward passes of a module and the images in them."""

    def __init__(self, module):
        self.shapes = []
        module.register_forward_hook(lambda _module, inputs, _output: self.shapes.append(tuple(inputs[0].shape)))


# Embeddings


def test_embeddings_are_free_by_default_and_of_one_length_if_asked():
    (view,) = views(16)
    free = model().student(view)
    assert free.norm(dim=-1).std() > 1e-3
    fixed = model(embedding_length=32.0).student(view)
    assert torch.allclose(fixed.norm(dim=-1), torch.full((4,), 32.0), rtol=1e-5)
    cosines = torch.nn.functional.cosine_similarity(free, fixed)
    assert torch.allclose(cosines, torch.ones(4), rtol=0, atol=1e-5)


# Assigner


def test_prototypes_have_unit_norm_whatever_the_length_of_the_weights():
    assigner = Assigner(12, 6)
    assert torch.allclose(assigner().norm(dim=-1), torch.ones(12), rtol=0, atol=1e-6)
    with torch.no_grad():
        assigner.directions_KD.mul_(torch.logspace(-3, 3, 12)[:, None])
    assert torch.allclose(assigner().norm(dim=-1), torch.ones(12), rtol=0, atol=1e-6)


def test_only_the_direction_of_a_prototype_is_learned():
    assigner = Assigner(12, 6)
    (assigner() * torch.randn(12, 6, generator=torch.Generator().manual_seed(0))).sum().backward()
    gradient, direction = assigner.directions_KD.grad, assigner.directions_KD.detach()
    along = (gradient * direction).sum(dim=-1) / direction.norm(dim=-1)
    assert float(gradient.abs().max()) > 0.1
    assert float(along.abs().max()) < 1e-5


def test_the_assigner_has_one_parameter_and_no_bias():
    assert {name: tuple(p.shape) for name, p in Assigner(12, 6).named_parameters()} == {"directions_KD": (12, 6)}


# Encoder


@pytest.mark.parametrize(
    ("name", "meant"), [("resnet5O", "resnet50"), ("rsnet18", "resnet18"), ("convnext_tinny", "convnext_tiny")]
)
def test_an_unknown_encoder_is_an_error_with_the_nearest_spelling(name, meant):
    with pytest.raises(ModelError, match=f"'{name}' is not a timm model.*Did you mean '{meant}'"):
        build_encoder(config(encoder=name, encoder_options={}))


def test_options_that_timm_does_not_take_are_an_error_that_names_them():
    with pytest.raises(ModelError, match=r"resnet18.*no_such_option"):
        build_encoder(config(encoder_options={"no_such_option": 1}))


@pytest.mark.parametrize("size", [8, 32, 64])
def test_small_images_get_a_3x3_stem_without_max_pool(size):
    encoder = build_encoder(config(global_size=size))
    assert encoder.conv1.kernel_size == (3, 3)
    assert encoder.conv1.stride == (1, 1)
    assert encoder.conv1.out_channels == encoder.bn1.num_features
    assert not any(isinstance(part, nn.MaxPool2d) for part in encoder.modules())


@pytest.mark.parametrize("size", [65, 224])
def test_large_images_keep_the_stem_of_the_encoder(size):
    encoder = build_encoder(config(global_size=size))
    assert encoder.conv1.kernel_size == (7, 7)
    assert encoder.conv1.stride == (2, 2)
    assert isinstance(encoder.maxpool, nn.MaxPool2d)


def test_the_stem_can_be_chosen_against_the_image_size():
    assert build_encoder(config(global_size=32, stem="encoder")).conv1.kernel_size == (7, 7)
    small = build_encoder(config(global_size=224, stem="small", stem_stride=2)).conv1
    assert (small.kernel_size, small.stride) == ((3, 3), (2, 2))


def test_a_small_stem_for_an_encoder_without_one_is_an_error():
    with pytest.raises(ModelError, match="stem: small needs a ResNet; 'test_vit'"):
        build_encoder(config(encoder="test_vit", encoder_options={}, stem="small"))


@pytest.mark.parametrize(
    ("name", "options"), [("resnetv2_18", {}), ("test_vit", {"img_size": 32}), ("test_convnext", {})]
)
def test_by_default_an_encoder_without_such_a_stem_is_left_as_it_is_at_small_sizes(name, options):
    encoder = build_encoder(config(encoder=name, encoder_options=options, global_size=32))
    assert encoder(views(32)[0]).shape == (4, num_features(encoder))


def test_the_encoder_returns_pooled_features_of_the_announced_length():
    encoder = build_encoder(config())
    assert encoder(views(16)[0]).shape == (4, num_features(encoder)) == (4, 8)


# Projector


def test_the_projector_is_three_linear_layers_with_batch_norm_and_gelu():
    layers = Projector(8, 16, 6).layers
    kinds = [nn.Linear, nn.BatchNorm1d, nn.GELU, nn.Linear, nn.BatchNorm1d, nn.GELU, nn.Linear]
    assert [type(layer) for layer in layers] == kinds
    assert [tuple(layers[i].weight.shape) for i in (0, 3, 6)] == [(16, 8), (16, 16), (6, 16)]


def test_the_embedding_scale_multiplies_only_the_last_layer():
    built = []
    for scale in (1.0, 10.0):
        torch.manual_seed(0)
        built.append(Projector(8, 16, 6, embedding_scale=scale))
    plain, scaled = (dict(projector.named_parameters()) for projector in built)
    for name, parameter in plain.items():
        factor = 10.0 if name.startswith("layers.6.") else 1.0
        assert torch.equal(scaled[name], parameter * factor), name
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(built[1](x), 10 * built[0](x), rtol=1e-5, atol=1e-5)


# Student and teacher


def test_multi_crop_the_student_sees_all_views_and_the_teacher_the_two_global_ones():
    made = model(local_views=3)
    student, teacher = Calls(made.student.encoder), Calls(made.teacher.encoder)
    embedded = made(views(16, 16, 8, 8, 8))
    assert [tuple(z.shape) for z in embedded.z] == [(4, 6)] * 5
    assert [tuple(w.shape) for w in embedded.w] == [(4, 6)] * 2
    assert student.shapes == [(4, 3, 16, 16)] * 2 + [(4, 3, 8, 8)] * 3
    assert teacher.shapes == [(4, 3, 16, 16)] * 2
    assert embedded.prototypes_KD.shape == embedded.teacher_prototypes_KD.shape == (12, 6)


def test_the_teacher_starts_as_a_copy_of_the_student_that_has_no_gradient():
    made = model()
    for (name, s), t in zip(made.student.named_parameters(), made.teacher.parameters(), strict=True):
        assert torch.equal(s, t), name
        assert s.data_ptr() != t.data_ptr(), name
        assert s.requires_grad, name
        assert not t.requires_grad, name
    embedded = made(views(16, 16))
    assert all(z.requires_grad for z in embedded.z)
    assert not any(w.requires_grad for w in embedded.w)
    assert embedded.prototypes_KD.requires_grad
    assert not embedded.teacher_prototypes_KD.requires_grad
    # Same weights and batch norm on the statistics of the batch: the same embeddings.
    for z, w in zip(embedded.z, embedded.w, strict=True):
        assert torch.equal(z.detach(), w)


def test_the_teachers_batch_norm_runs_on_the_statistics_of_its_own_batch():
    made = model()
    seen = []
    made.teacher.projector.layers[1].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    made([10 + 5 * view for view in views(16, 16)])  # far from the running statistics, which start at 0 and 1
    assert len(seen) == 2
    for output in seen:
        assert float(output.mean(dim=0).abs().max()) < 1e-5
        assert float((output.var(dim=0, unbiased=False) - 1).abs().max()) < 0.05  # eps weighs on small variances


def test_a_siamese_model_shares_its_weights_and_does_no_second_forward():
    made = model(teacher_momentum=0)
    assert made.teacher is made.student
    calls = Calls(made.student.encoder)
    embedded = made(views(16, 16, 8))
    assert calls.shapes == [(4, 3, 16, 16)] * 2 + [(4, 3, 8, 8)]
    assert len(embedded.w) == 2
    for z, w in zip(embedded.z[:2], embedded.w, strict=True):
        assert torch.equal(z.detach(), w)
        assert not w.requires_grad
    assert not embedded.teacher_prototypes_KD.requires_grad
    assert torch.equal(embedded.prototypes_KD.detach(), embedded.teacher_prototypes_KD)


def test_a_siamese_model_is_not_changed_by_an_update_of_the_teacher():
    made = model(teacher_momentum=0)
    before = {name: p.clone() for name, p in made.named_parameters()}
    made.update_teacher(0.0)
    made.update_teacher(0.5)
    assert all(torch.equal(p, before[name]) for name, p in made.named_parameters())


def test_a_momentum_that_only_starts_at_zero_is_not_siamese():
    made = model(teacher_momentum=(0.0, 1.0))
    assert made.teacher is not made.student


def test_the_teacher_follows_by_the_closed_form_of_the_moving_average():
    made = model()
    momenta = [0.99, 0.9, 0.5, 0.996, 1.0, 0.7]
    start = {name: p.detach().double().numpy().copy() for name, p in made.teacher.named_parameters()}
    history = {name: [] for name in start}
    g = torch.Generator().manual_seed(0)
    for momentum in momenta:
        with torch.no_grad():
            for name, p in made.student.named_parameters():
                p.add_(torch.randn(p.shape, generator=g))
                history[name].append(p.double().numpy().copy())
        made.update_teacher(momentum)
    for name, p in made.teacher.named_parameters():
        expected = carp_numpy.ema_closed_form(start[name], history[name], momenta)
        np.testing.assert_allclose(
            expected, carp_numpy.ema(start[name], history[name], momenta), rtol=1e-12, atol=1e-12
        )
        np.testing.assert_allclose(p.double().numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_momentum_of_one_keeps_the_teacher_and_of_zero_copies_the_student():
    made = model()
    with torch.no_grad():
        for p in made.student.parameters():
            p.add_(1.0)
    before = [p.clone() for p in made.teacher.parameters()]
    made.update_teacher(1.0)
    assert all(torch.equal(p, b) for p, b in zip(made.teacher.parameters(), before, strict=True))
    made.update_teacher(0.0)
    assert all(torch.equal(t, s) for t, s in zip(made.teacher.parameters(), made.student.parameters(), strict=True))


def test_the_moving_average_leaves_buffers_alone():
    made = model()
    made(views(16, 16, 8))  # the student's running statistics have seen another view
    buffers = {name: b.clone() for name, b in made.teacher.named_buffers()}
    assert any(not torch.equal(b, buffers[name]) for name, b in made.student.named_buffers())
    made.update_teacher(0.5)
    assert buffers
    assert all(torch.equal(b, buffers[name]) for name, b in made.teacher.named_buffers())


def test_prototypes_of_the_teacher_have_unit_norm_after_an_update():
    made = model()
    with torch.no_grad():
        made.student.assigner.directions_KD.normal_().mul_(5)
    made.update_teacher(0.6)
    norms = made.teacher.assigner().norm(dim=-1)
    assert torch.allclose(norms, torch.ones(12), rtol=0, atol=1e-6)


def test_a_branch_is_the_projector_after_the_encoder():
    torch.manual_seed(0)
    branch = Branch(config()).eval()
    (x,) = views(16)
    assert torch.equal(branch(x), branch.projector(branch.encoder(x)))


# Joint batch norm


def test_joint_views_of_one_size_pass_the_encoder_together_and_all_views_the_projector():
    joint = model(batch_norm_views="joint").train()
    encoder, projector = Calls(joint.student.encoder), Calls(joint.student.projector)
    teacher_encoder, teacher_projector = Calls(joint.teacher.encoder), Calls(joint.teacher.projector)
    given = views(32, 32, 16, 16, 16)
    embedded = joint(given)
    assert encoder.shapes == [(8, 3, 32, 32), (12, 3, 16, 16)]
    assert [shape[0] for shape in projector.shapes] == [20]
    assert teacher_encoder.shapes == [(8, 3, 32, 32)]
    assert [shape[0] for shape in teacher_projector.shapes] == [8]
    assert [len(z) for z in embedded.z] == [4] * 5
    branch = joint.student
    features = torch.cat([branch.encoder(torch.cat(given[:2])), branch.encoder(torch.cat(given[2:]))])
    assert torch.equal(torch.cat(embedded.z), branch.projector(features))


def test_joint_and_separate_batch_norm_differ_in_training_and_not_in_evaluation():
    given = views(32, 32, 16)
    given[1] = 3 * given[1] + 1  # statistics that differ between views
    joint, separate = model(batch_norm_views="joint"), model()
    separate.load_state_dict(joint.state_dict())
    for ours, theirs in zip(joint.eval().embed_student(given), separate.eval().embed_student(given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    apart = [
        (ours - theirs).norm() / theirs.norm()
        for ours, theirs in zip(joint.train().embed_student(given), separate.train().embed_student(given), strict=True)
    ]
    assert all(distance > 0.01 for distance in apart)


def test_the_projector_may_start_from_a_truncated_normal_distribution_without_bias():
    default, truncated = (Projector(64, 128, 32, init=init) for init in ("default", "truncated_normal"))
    for ours, theirs in zip(truncated.layers, default.layers, strict=True):
        if isinstance(ours, torch.nn.Linear):
            assert ours.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert not ours.bias.any()
            assert theirs.bias.any()
    assert model(projector_init="truncated_normal").teacher.projector.layers[0].weight.std().item() < 0.03


def test_kept_statistics_never_change_and_are_used_in_training() -> None:
    config = Config(**{**TINY, "start": "weights.safetensors", "encoder_statistics": "kept"})
    model = Carp(config).train()
    norms = [part for part in model.student.encoder.modules() if isinstance(part, nn.BatchNorm2d)]
    before = {name: tensor.clone() for name, tensor in model.student.encoder.state_dict().items()}
    images = torch.randn(4, 3, 16, 16)
    kept = model.student.encoder(images)
    assert norms
    assert not any(norm.training for norm in norms)
    assert all(part.training for part in model.student.projector.modules())
    for name, tensor in model.student.encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    model.student.encoder.eval()
    assert torch.equal(model.student.encoder(images), kept)
    kept.sum().backward()
    assert all(p.grad is not None for p in model.student.encoder.parameters())


def test_a_share_of_the_start_remains_in_the_teachers_encoder() -> None:
    config = Config(**{**TINY, "start": "weights.safetensors", "start_share": 0.25})
    carp = Carp(config)
    tensors = carp.student.encoder.state_dict()
    start = {name: torch.randn_like(tensor) for name, tensor in tensors.items() if tensor.is_floating_point()}
    carp.load_encoder(start)
    with torch.no_grad():
        for parameter in carp.student.parameters():
            parameter.add_(torch.randn_like(parameter))
    before = {name: parameter.clone() for name, parameter in carp.teacher.named_parameters()}
    carp.update_teacher(0.9)
    student = dict(carp.student.named_parameters())
    for name, parameter in carp.teacher.named_parameters():
        followed = student[name]
        if name.startswith("encoder."):
            followed = 0.25 * start[name.removeprefix("encoder.")] + 0.75 * followed
        torch.testing.assert_close(parameter, 0.9 * before[name] + 0.1 * followed)
    for _ in range(300):
        carp.update_teacher(0.9)
    name, weight = next((n, p) for n, p in carp.teacher.encoder.named_parameters() if p.ndim > 1)
    torch.testing.assert_close(weight, 0.25 * start[name] + 0.75 * student[f"encoder.{name}"], rtol=1e-4, atol=1e-5)
    assert not any(p.requires_grad for p in carp.start.parameters())
