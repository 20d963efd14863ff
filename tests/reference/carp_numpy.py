"""The paper's equations as plain NumPy loops in float64: slow, obvious, and independent of `carp`.

Written from "Consistent Assignment of Views" and "Assignment based on Random Partitions" with the conventions of
DESIGN.md section 3. Nothing here imports `carp` or torch. Arrays: z [V, B, D], w [2, B, D], prototypes [K, D],
partition [P, N].
"""

import math

import numpy as np


def dot(a, b):
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += float(x) * float(y)
    return total


def softmax(logits):
    largest = max(logits)
    powers = [math.exp(x - largest) for x in logits]
    total = sum(powers)
    return [x / total for x in powers]


def assign(embedding, prototypes, block):
    """q(h, B_j) = softmax(h · B_jᵀ); a block of one prototype is a Bernoulli against an implicit zero logit."""
    logits = [dot(embedding, prototypes[k]) for k in block]
    if len(logits) == 1:
        logits.append(0.0)
    return softmax(logits)


def consistency_of(a, b):
    """L_c(a, b) = −log⟨a, b⟩."""
    return -math.log(dot(a, b))


def entropy(p):
    """H(p), with 0 log 0 = 0."""
    return -sum(x * math.log(x) for x in p if x > 0)


def assignments(x, prototypes, partition):
    """s[v][i][j]: the assignment of view v of image i in block j."""
    return [[[assign(image, prototypes, block) for block in partition] for image in view] for view in x]


def consistency(s, t):
    """The sum of both directions at two views; twice the mean over ordered pairs (u, v), u != v, v global, for more."""
    num_images, num_blocks = len(s[0]), len(s[0][0])
    per_pair = []
    for u in range(len(s)):
        for v in range(len(t)):
            if u == v:
                continue
            total = 0.0
            for i in range(num_images):
                for j in range(num_blocks):
                    total += consistency_of(s[u][i][j], t[v][i][j])
            per_pair.append(total / (num_images * num_blocks))
    if len(s) == 2:
        return per_pair[0] + per_pair[1]
    return 2.0 * sum(per_pair) / len(per_pair)


def mean_assignment(s, t, block):
    """p̄_j: the mean over all views of student and teacher and the whole batch."""
    outcomes = len(s[0][0][block])
    mean, count = [0.0] * outcomes, 0
    for branch in (s, t):
        for view in branch:
            for image in view:
                count += 1
                for n in range(outcomes):
                    mean[n] += image[block][n]
    return [x / count for x in mean]


def kl_to_uniform(s, t):
    """The mean over blocks of ln N_B − H(p̄_j); a Bernoulli block has two outcomes."""
    num_blocks = len(s[0][0])
    total = 0.0
    for j in range(num_blocks):
        p = mean_assignment(s, t, j)
        total += math.log(len(p)) - entropy(p)
    return total / num_blocks


def collision(s, t):
    """The mean over blocks of ln(N_B · U_j), U_j the mean of ⟨a_i, a_k⟩ over i != k, a_i the mean over all views."""
    num_images, num_blocks = len(s[0]), len(s[0][0])
    if num_images < 2:
        return 0.0
    total = 0.0
    for j in range(num_blocks):
        means = [mean_assignment([[view[i]] for view in s], [[view[i]] for view in t], j) for i in range(num_images)]
        products = [dot(means[i], means[k]) for i in range(num_images) for k in range(num_images) if i != k]
        total += math.log(len(means[0]) * sum(products) / len(products))
    return total / num_blocks


def loss(z, w, prototypes, teacher_prototypes, partition, entropy_weight=1.0):
    """Return (total, consistency, kl_to_uniform)."""
    s = assignments(z, prototypes, partition)
    t = assignments(w, teacher_prototypes, partition)
    agreement, kl = consistency(s, t), kl_to_uniform(s, t)
    return agreement + entropy_weight * kl, agreement, kl


def unpartitioned_loss(z, w, prototypes, teacher_prototypes, weight):
    """The equation of "Consistent Assignment of Views", without blocks: −λ_e H(p̄) as it stands, two views."""
    everything = range(len(prototypes))
    num_images = len(z[0])
    s = [[assign(image, prototypes, everything) for image in view] for view in z]
    t = [[assign(image, teacher_prototypes, everything) for image in view] for view in w]
    total = 0.0
    for i in range(num_images):
        total += consistency_of(s[0][i], t[1][i]) + consistency_of(s[1][i], t[0][i])
    mean = [0.0] * len(s[0][0])
    for branch in (s, t):
        for view in branch:
            for image in view:
                for k, probability in enumerate(image):
                    mean[k] += probability / (4 * num_images)
    return total / num_images - weight * entropy(mean)


def norm(values):
    return math.sqrt(sum(float(x) ** 2 for x in np.asarray(values).ravel()))


def lars_step(parameter, gradient, buffer, *, lr, momentum, weight_decay, trust, adapt=True):
    """One step of one tensor: (new parameter, new momentum buffer)."""
    p, g, m = (np.asarray(x, dtype=np.float64).ravel() for x in (parameter, gradient, buffer))
    update = [g[i] + weight_decay * p[i] for i in range(len(p))]
    if adapt and norm(p) > 0 and norm(update) > 0:
        ratio = trust * norm(p) / norm(update)
        update = [ratio * u for u in update]
    new_buffer = [momentum * m[i] + update[i] for i in range(len(p))]
    new_parameter = [p[i] - lr * new_buffer[i] for i in range(len(p))]
    shape = np.shape(parameter)
    return np.array(new_parameter).reshape(shape), np.array(new_buffer).reshape(shape)


def ema(teacher, students, momenta):
    """The teacher after following the students one after the other."""
    result = np.array(teacher, dtype=np.float64)
    for student, momentum in zip(students, momenta, strict=True):
        result = momentum * result + (1 - momentum) * np.asarray(student, dtype=np.float64)
    return result


def ema_closed_form(teacher, students, momenta):
    """The same without recursion: Π η · teacher + Σ_k (1 − η_k) Π_{l>k} η_l · student_k."""
    result = math.prod(momenta) * np.array(teacher, dtype=np.float64)
    for k, student in enumerate(students):
        share = (1 - momenta[k]) * math.prod(momenta[k + 1 :])
        result = result + share * np.asarray(student, dtype=np.float64)
    return result


def cosine(start, end, step, num_steps):
    """Half a cosine from `start` at step 0 to `end` at step num_steps − 1."""
    angle = math.pi * step / (num_steps - 1)
    return end + 0.5 * (start - end) * (1.0 + math.cos(angle))
