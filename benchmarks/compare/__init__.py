"""The referee: CARP and seven other methods with the same encoder, images, steps and number of trials.

    python -m benchmarks.compare run --train cifar10/train --test cifar10/test --name cifar10 --size 32 --epochs 10
    python -m benchmarks.compare table

Every method tries its published setting and the same number of settings drawn from its range. The trials are judged by
k-NN on training images that are held out; only then is the best setting trained with several seeds and tested. Each
training is a job of a study (`carp.studies`): finished jobs are never repeated, interrupted ones resume, and several
processes may work on one folder.
"""
