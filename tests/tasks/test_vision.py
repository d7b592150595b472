import numpy as np
import pytest
import torch

from qkvlab.tasks import IMAGES, load

SIZES = {"digits": (1437, 360, 8), "mnist": (8000, 2000, 28), "fashion": (10_000, 2000, 28)}


@pytest.mark.parametrize("name", IMAGES)
def test_shapes_scale_and_labels(name):
    task, (train, valid, side) = load(name), SIZES[name]
    assert (task.kind, task.inputs, task.outputs, task.image, len(task.classes)) == ("images", 1, 10, side, 10)
    x, y = task.batch(np.random.default_rng(0), 64, 0)
    assert x.shape == (64, 1, side, side) and x.dtype == torch.float32 and y.shape == (64,) and y.dtype == torch.int64
    x, y = task.validation(0, 10**6)
    assert len(x) == valid and len(task._train[1]) == train
    assert x.min() == 0.0 and x.max() == 1.0
    assert torch.bincount(y, minlength=10).min() > 0.07 * valid  # every class is there
    assert torch.equal(task.validation(0, 7)[1], y[:7])


@pytest.mark.parametrize("name", IMAGES)
def test_no_validation_image_trains(name):
    task = load(name)
    seen = {image.tobytes() for image in task._train[0]}
    assert not [i for i, image in enumerate(task._valid[0]) if image.tobytes() in seen]


def test_the_pixels_are_the_published_ones():
    x, _ = load("mnist").batch(np.random.default_rng(0), 4000, 0)
    assert abs(x.mean() - 0.1307) < 0.003 and abs(x.std() - 0.3081) < 0.003  # MNIST's well-known mean and spread
    x, _ = load("fashion").batch(np.random.default_rng(0), 4000, 0)
    assert abs(x.mean() - 0.2860) < 0.005 and abs(x.std() - 0.3530) < 0.005
    fashion, digits = load("fashion"), load("digits")
    assert [fashion.classes[i] for i in fashion._train[1][:2]] == ["Ankle boot", "T-shirt/top"]
    assert fashion.classes[fashion.validation(0, 1)[1]] == "Ankle boot"
    # scikit-learn's documentation prints the first digit
    assert digits._train[0][0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0] and digits._train[1][:5].tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_a_batch_is_its_generators_alone():
    task = load("digits")
    first, again, other = (task.batch(np.random.default_rng(s), 32, 0) for s in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]) and not torch.equal(first[1], other[1])
