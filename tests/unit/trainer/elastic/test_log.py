from __future__ import annotations

from ecorl.trainer.elastic.log import TrainingLog
from ecorl.trainer.elastic.records import StepDone


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
