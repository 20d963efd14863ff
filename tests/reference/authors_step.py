"""A training step as the authors' published code takes it, restated in plain PyTorch and independent of `carp`.

What it fixes, and the paper's text leaves open: the features of all views of one size come from one pass through the
encoder, and all of them pass through the projector together; the consistency is the mean over ordered pairs; the
teacher moves before the optimiser, in place, parameters only; the schedules divide by the number of steps. Their clamps
to [ε, 1 − ε] are left out.
"""

import math

import torch


class Network:
    """An encoder, a projector and prototype directions; the modules are trained in place."""

    def __init__(self, encoder, projector, directions):
        self.encoder, self.projector, self.directions = encoder, projector, directions

    def parameters(self):
        return [*self.encoder.parameters(), *self.projector.parameters(), self.directions]

    def logits(self, views):
        """One matrix [V * B, K]: views of one size are concatenated for the encoder, all features for the projector."""
        features, start = [], 0
        while start < len(views):
            end = start
            while end < len(views) and views[end].shape == views[start].shape:
                end += 1
            features.append(self.encoder(torch.cat(views[start:end])))
            start = end
        unit = self.directions / self.directions.norm(dim=1, keepdim=True)
        return self.projector(torch.cat(features)) @ unit.T


def loss(student_logits, teacher_logits, partition, num_views):
    """Mean over pairs of −log⟨s, t⟩, plus the divergence of the mean assignment from uniform, weight 1."""
    blocks = [rows.tolist() for rows in partition]
    s = [[view[:, rows].softmax(dim=1) for rows in blocks] for view in student_logits.chunk(num_views)]
    t = [[view[:, rows].softmax(dim=1) for rows in blocks] for view in teacher_logits.chunk(2)]
    pairs = []
    for u in range(num_views):
        for v in range(2):
            if u != v:
                agreement = [(a * b).sum(dim=1).log().mean() for a, b in zip(s[u], t[v], strict=True)]
                pairs.append(-sum(agreement) / len(blocks))
    divergence = 0.0
    for j, rows in enumerate(blocks):
        mean = torch.cat([view[j] for view in (*s, *t)]).mean(dim=0)
        divergence = divergence + math.log(len(rows)) + (mean * mean.log()).sum()
    return sum(pairs) / len(pairs) + divergence / len(blocks)


def schedule(start, end, step, num_steps):
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * step / num_steps))


class Lars:
    """Momentum 0.9, trust 0.001; vectors are neither decayed nor adapted."""

    def __init__(self, parameters):
        self.parameters, self.moments = parameters, [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients, lr, weight_decay):
        for p, gradient, moment in zip(self.parameters, gradients, self.moments, strict=True):
            update = gradient
            if p.ndim > 1:
                update = update + weight_decay * p
                size, length = p.norm(), update.norm()
                if size > 0 and length > 0:
                    update = update * (0.001 * size / length)
            moment.mul_(0.9).add_(update)
            p.sub_(lr * moment)


def take_step(student, teacher, optimiser, micro_batches, partitions, *, lr, weight_decay, momentum):
    """One step; every micro-batch has its own partition and its own loss. Returns the mean of the losses."""
    parameters, losses = student.parameters(), []
    gradients = [torch.zeros_like(p) for p in parameters]
    for views, partition in zip(micro_batches, partitions, strict=True):
        own = student.logits(views)
        with torch.no_grad():
            target = teacher.logits(views[:2])
        value = loss(own, target, partition, len(views)) / len(micro_batches)
        for total, part in zip(gradients, torch.autograd.grad(value, parameters), strict=True):
            total.add_(part)
        losses.append(value.item())
    with torch.no_grad():
        for q, k in zip(parameters, teacher.parameters(), strict=True):
            k.mul_(momentum).add_((1 - momentum) * q)
    optimiser.step(gradients, lr, weight_decay)
    return sum(losses)
