"""Trainings whose width changes end where a training of one member does, each row trained once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import ray

from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.errors import CheckpointError, ConfigError, DataError, RunError
from ecorl.trainer import ElasticTrainer
from ecorl.trainer.elastic.records import ActorPlace, ElasticFault, Patience
from tests.elastic_runs import check_whole, training
from tests.toy_task import N_ROWS, ToyTask, undisturbed


def test_the_width_changes_while_training_goes_on(elastic_cluster, tmp_path):
    task = ToyTask(step_s=0.02)
    with training(tmp_path, task, checkpoint_every=50) as trainer:

        def steer(done):
            # From another thread, as a user would.
            if done.step == 3:
                threading.Thread(target=trainer.set_width, args=(2,)).start()
            if done.width == 2 and not trainer.asked:
                trainer.asked = True
                trainer.set_width(1)
            if trainer.asked and done.width == 1:
                trainer.stop()

        trainer.asked = False
        first = trainer.train(10_000, steer)
        assert not first.is_complete
        n_steps = trainer.n_done + 5
        result = trainer.train(n_steps)
        check_whole(trainer, result, task, n_steps)
        assert trainer.width == 1
    up, down = result.changes[1:]
    assert (up.before, up.after, down.before, down.after) == (1, 2, 2, 1)
    # While the joiner loaded for seconds, steps of a fiftieth of one were committed.
    loading = [one for one in result.steps if 3 < one.step < up.step]
    assert len(loading) > 10
    assert result.faults == ()
    assert result.n_redone == 0


def test_the_same_history_of_widths_gives_the_same_bits(elastic_cluster, tmp_path):
    task = ToyTask(dropout=0.2)
    ends = []
    for name in ("one", "two"):
        with training(tmp_path / name, task, keeps_spares=True) as trainer:
            for at_step, width in ((4, 2), (8, 1), (10, 2), (14, 1)):
                trainer.set_width(width, at_step=at_step)
            result = trainer.train(16)
            ends.append((result.losses, trainer.digests()))
        assert result.widths == [1] * 4 + [2] * 4 + [1] * 2 + [2] * 4 + [1] * 2
        # Who had left was kept, and so was the group.
        changes = {one.step: one for one in result.changes}
        assert changes[10].prepared_s < changes[4].prepared_s / 4
    assert ends[0] == ends[1]


def test_a_pause_saves_lets_go_and_goes_on(elastic_cluster, tmp_path):
    task = ToyTask(dropout=0.2)
    with training(tmp_path, task, width=1) as trainer:
        trainer.set_width(0, at_step=5)
        resumes = threading.Timer(0.5, go_on_after_pause, [trainer])
        resumes.start()
        result = trainer.train(9)
        resumes.join()
        losses, _ = undisturbed(task, 9, micro_batch_rows=3)
        assert result.losses == losses  # bit by bit: a checkpoint keeps all of the state
        pause, again = result.changes[1:]
        assert (pause.step, pause.before, pause.after) == (5, 1, 0)
        assert (again.step, again.before, again.after) == (5, 0, 1)
        assert result.n_redone == 0


def go_on_after_pause(trainer):
    while trainer.n_done < 5 or trainer.width:
        threading.Event().wait(0.05)
    trainer.set_width(1)


class Played:
    """Answers from a list, by the steps that are done; the last of it again and again."""

    def __init__(self, plays):
        self.plays, self.heard = plays, []

    def decide(self, now_s, steps_done, steps_left):
        self.heard.append((steps_done, steps_left))
        play = [play for from_step, play in self.plays if from_step <= steps_done][-1]
        if isinstance(play, Exception):
            raise play
        return play


def choice(width=None, command=Command.RUN, gear=None):
    return GearChoice(0.0, command, Why.PRICED, "list", "", 0.0, width=width, gear=gear)


class GearedTask(ToyTask):
    def shift(self, model, gear):
        model.gear = gear

    def loss(self, model, indices):
        losses = super().loss(model, indices)
        return losses * 2 if getattr(model, "gear", None) is Gear.FP8 else losses


def test_a_controller_decides_on_width_and_gear_until_it_is_gone(elastic_cluster, tmp_path):
    task = GearedTask(step_s=0.02)
    plain, _ = undisturbed(ToyTask(), 1, micro_batch_rows=3)
    plays = Played(
        [
            (0, choice(1, gear=Gear.FP8)),
            (1, choice(2, gear=Gear.BF16)),
            (6, ConnectionError("no feed")),
        ]
    )
    patience = Patience(decide_s=10.0)
    with training(tmp_path, task, control=plays, patience=patience) as trainer:
        trainer.train(400, lambda done: done.width == 2 and done.step > 8 and trainer.stop())
        result = trainer.train(trainer.n_done + 2)
    assert result.losses[0] == pytest.approx(2 * plain[0], rel=1e-5)
    assert result.losses[1] < result.losses[0]
    # It was gone before the joiner was there: its last choice held.
    assert [one.kind for one in result.faults] == [ElasticFault.CONTROL_GONE]
    assert result.widths[-1] == 2
    assert plays.heard[0] == (0, 400)


class Keeper(Played):
    """Remembers how many steps it was told of."""

    def memory(self):
        return {"told": self.heard[-1][0]}

    def recall(self, memory):
        self.recalled = memory
        self.heard_before = list(self.heard)


def test_a_resumed_training_and_its_controller_know_what_is_done(elastic_cluster, tmp_path):
    patience = Patience(decide_s=10.0)
    for first, n_steps in ((0, 3), (3, 5)):
        keeps = Keeper([(0, choice(1))])
        with training(tmp_path, ToyTask(), control=keeps, patience=patience) as trainer:
            assert trainer.n_done == first
            result = trainer.train(n_steps)
    assert (result.first_step, result.n_redone) == (3, 0)
    # Of the last boundary it is not asked: there is nothing left to decide.
    assert keeps.recalled == {"told": 2}
    # It was told so before it decided anything.
    assert keeps.heard_before == []
    assert set(keeps.heard) == {(3, 2), (4, 1)}


@pytest.mark.parametrize(
    ("n_steps", "every"),
    [(10, 50), pytest.param(3, 50, id="at the end"), pytest.param(10, 3, id="before a checkpoint")],
)
def test_what_the_users_own_functions_raise_reaches_the_user(
    elastic_cluster, tmp_path, n_steps, every
):
    """A step is applied with the next one's call, or where a state is asked for."""
    task = ToyTask(faulty_from=2)
    with (
        training(tmp_path, task, checkpoint_every=every) as trainer,
        pytest.raises(ValueError, match="the user's own mistake"),
    ):
        trainer.train(n_steps)


def test_an_optimizer_whose_state_cannot_be_written_reaches_the_user(elastic_cluster, tmp_path):
    class Locked(ToyTask):
        def make_optimizer(self, model):
            made = super().make_optimizer(model)
            made.param_groups[0]["lock"] = threading.Lock()
            return made

    with training(tmp_path, Locked()) as trainer, pytest.raises(TypeError, match="pickle"):
        trainer.train(1)


def test_actors_end_though_the_last_state_cannot_be_written_down(elastic_cluster, tmp_path):
    class Stops(Exception):
        pass

    def on_step(done):
        # The next state fails, and training does not look at it any more.
        trainer._saver.save(1, ray.put("no bytes"))
        raise Stops

    with pytest.raises(Stops), training(tmp_path, ToyTask()) as trainer:
        trainer.train(2, on_step)
    assert trainer.width == 0
    assert not trainer._staff._alive


def test_a_model_that_cannot_be_made_reaches_the_user_and_so_do_no_rows(elastic_cluster, tmp_path):
    class NoModel(ToyTask):
        def make_model(self):
            raise CheckpointError("the folder of the model is empty")

    class NoRows(ToyTask):
        def rows(self, step):
            return ()

    with training(tmp_path, NoModel()) as trainer:
        with pytest.raises(CheckpointError, match=r"^the folder of the model is empty$"):
            trainer.train(1)
        with pytest.raises(RunError, match="nothing has been trained"):
            trainer.weights()
    with training(tmp_path, NoRows()) as trainer, pytest.raises(DataError, match="no rows"):
        trainer.train(1)


def test_without_room_for_a_single_actor_it_says_so(elastic_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._TRIES", 1)
    place, patience = ActorPlace(num_cpus=100), Patience(join_s=0.5)
    with training(tmp_path, ToyTask(), place=place, patience=patience) as trainer:
        with pytest.raises(RunError, match="no trainer actors came up"):
            trainer.train(1)
        (fault,) = trainer._log.result(1).faults
    assert fault.kind is ElasticFault.JOINER_LOST
    assert "was not placed" in fault.message


@pytest.mark.deep
def test_a_width_for_which_there_is_no_room_rests_and_training_goes_on(
    elastic_cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._JOINS", 1)
    task = ToyTask(step_s=0.02)
    # Two nodes of two CPUs.
    place, patience = ActorPlace(num_cpus=2), Patience(join_s=20.0)
    with training(tmp_path, task, width=2, place=place, patience=patience) as trainer:
        trainer.set_width(3, at_step=4)
        result = trainer.train(12)
        check_whole(trainer, result, task, 12)
    kinds = [one.kind for one in result.faults]
    assert kinds == [ElasticFault.JOINER_LOST, ElasticFault.WIDTH_GIVEN_UP]
    assert result.widths == [2] * 12


def test_without_a_cluster_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer.has_cluster", lambda: False)
    with pytest.raises(ConfigError, match=r"ray\.init\(\)"):
        ElasticTrainer(ToyTask(), tmp_path)


def test_the_rows_of_a_run_are_those_of_whole_epochs():
    rows = [row for step in range(N_ROWS) for row in ToyTask().rows(step)]
    assert set(Counter(rows).values()) == {7}
