from __future__ import annotations

from ecorl.trainer.elastic.records import StepDone, TrainingLog


def commit(log, n, width=1, time_s=1.0):
    for _ in range(n):
        log.commit(StepDone(log.n_done, 0.0, width, (), 0.0, time_s))


def test_steps_of_an_earlier_program_are_done_and_not_redone():
    log = TrainingLog(6)
    assert log.n_done == 6
    commit(log, 4)
    log.roll_back(8)
    assert log.result(8).n_redone == 2
    # The checkpoint with which the training began is damaged, and the one before it is taken.
    log.roll_back(5)
    result = log.result(5)
    assert (result.first_step, result.n_redone, result.is_complete) == (5, 4, True)


def test_the_pace_is_that_of_the_last_steps_at_a_width():
    log = TrainingLog()
    assert log.pace_s(0) is None
    commit(log, 3, width=1, time_s=9.0)
    commit(log, 8, width=1, time_s=1.0)
    commit(log, 8, width=2, time_s=0.5)
    assert (log.pace_s(1), log.pace_s(2), log.pace_s(3), log.pace_s(0)) == (1.0, 0.5, None, 0.5)


def test_the_pace_of_a_long_training_is_told_without_reading_all_of_it():
    log = TrainingLog()
    commit(log, 20)
    log._steps = Unread()
    assert log.pace_s(1) == 1.0


class Unread(list):
    def __iter__(self):
        raise AssertionError("all steps are read")
