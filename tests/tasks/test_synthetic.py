import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvlab.tasks import LISTS, load
from qkvlab.tasks.synthetic import lists

ANSWER = {  # in plain Python, one list at a time
    "reverse": lambda x: list(reversed(x)),
    "sort": sorted,
    "sub": lambda x: [9 - d for d in x],
    "swap": lambda x: x[len(x) // 2 :] + x[: len(x) // 2],
    "copy": list,
}


@settings(deadline=None, max_examples=25)
@given(name=st.sampled_from(LISTS), half=st.integers(1, 40), seed=st.integers(0, 2**32), size=st.integers(1, 9))
def test_every_answer_is_the_tasks_own(name, half, seed, size):
    task = load(name, length=2 * half)
    for x, y in (task.batch(np.random.default_rng(seed), size, 0), task.validation(0, size)):
        assert x.shape == y.shape == (size, 2 * half) and x.dtype == y.dtype == torch.int64
        assert [ANSWER[name](row) for row in x.tolist()] == y.tolist()


def test_a_worked_example_of_each():
    x = np.array([[3, 1, 4, 1]], np.uint8)
    from qkvlab.tasks.synthetic import RULES

    assert {n: rule(x)[0].tolist() for n, rule in RULES.items()} == {
        "reverse": [1, 4, 1, 3],
        "sort": [1, 1, 3, 4],
        "sub": [6, 8, 5, 8],
        "swap": [4, 1, 3, 1],
        "copy": [3, 1, 4, 1],
    }


@pytest.mark.parametrize("length", [4, 5, 16, 64])
def test_no_test_list_trains(length):
    train, test = lists(length)
    assert train.shape == (10_000, length) and test.shape == (2_000, length)
    assert not {tuple(r) for r in train.tolist()} & {tuple(r) for r in test.tolist()}
    assert set(np.unique(train)) == set(range(10))


def test_short_lists_exist_although_they_must_repeat():
    assert load("sort", length=1).validation(0, 5000)[0].shape == (2000, 1)


def test_the_lists_are_the_same_for_all_tasks_and_every_time():
    same = [load(n).validation(0, 50)[0] for n in LISTS]
    assert all(torch.equal(x, same[0]) for x in same)
    lists.cache_clear()
    assert torch.equal(load("copy").validation(0, 50)[0], same[0])


def test_swap_needs_halves():
    with pytest.raises(ValueError, match=r"length=7.*even"):
        load("swap", length=7)
    load("reverse", length=7)
    with pytest.raises(ValueError, match="length=0"):
        load("copy", length=0)
