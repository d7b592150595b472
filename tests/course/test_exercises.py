"""Every exercise of every lab: blank is not tried, the solution passes, typical wrong answers get their own message."""

import pytest

from qkvlab.course.exercises import exercises

EVERY = list(exercises().values())


@pytest.mark.parametrize("exercise", EVERY, ids=[e.key for e in EVERY])
def test_exercise_answers_as_it_should(exercise):
    for blank in (None, "", "  "):
        assert exercise.check(blank).state == "not tried"
    verdict = exercise.check(exercise.answer)
    assert (verdict.state, verdict.message) == ("right", exercise.right)
    messages = [exercise.check(given) for given, _ in exercise.wrong]
    assert [v.state for v in messages] == ["not yet"] * len(messages)
    assert [v.message for v in messages] == [says for _, says in exercise.wrong]  # no answer is taken for another one
    assert len({v.message for v in messages}) == len(messages) >= 2


@pytest.mark.parametrize("lab", ["01", "02"])
def test_each_lab_has_three(lab):
    assert sum(e.key.startswith(lab) for e in EVERY) >= 3
