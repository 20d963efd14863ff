"""The referee: CARP and seven other methods with the same encoder, images, steps and number of trials.

    python -m benchmarks.compare run --name gtsrb --train gtsrb_48/train --test gtsrb_48/test --epochs 6
    python -m benchmarks.compare table

docs/comparison.md has the commands of all its tables.

Every method tries its published setting and the same number of settings drawn from its range. The trials are judged by
k-NN on training images that are held out; only then is the best setting trained with several seeds and tested. Each
training is a job of a study (`carp.studies`): finished jobs are never repeated, interrupted ones resume, and several
processes may work on one folder.
"""
