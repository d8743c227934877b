"""References that are put off: started where ROLL computes them, joined where it uses them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from ecorl.errors import EngineCrashed, EngineTimeout, InvalidResult
from ecorl.records import Action
from ecorl.runtime.handles import Iteration
from roll_adapters.roll.stages import hooks
from roll_adapters.roll.stages.references import ReferenceRequest, References
from roll_adapters.roll.stages.replacements import joined, put_off
from tests.fakes.roll_batches import (
    ROWS,
    Compute,
    FakeRuntime,
    cluster,
    merge,
    own_logprobs,
    step_batch,
)

SHUFFLED = [3, 0, 5, 1, 4, 2]
DOMAINS = ["math", "code", "code", "math", "chat", "code"]
TEACHERS = {"math": ["large"], "code": ["small"], "chat": ["large", "small"]}
TWO = ("large", "small")
BOTH_AWAY = {"reference:large": Action.CONCURRENT, "reference:small": Action.CONCURRENT}
ANSWERS = "ref_log_probs"


class Step:
    """A step as ROLL's driver makes it, and what came of it."""

    def __init__(self, runtime, names=("default",), compute=None, *, routed=False, **options):
        self.compute = compute or Compute()
        self.teachers = TEACHERS if routed else None
        self.references = References(
            runtime, self.compute, merge, {}, **{"compared": False, "overlap": False, **options}
        )
        self.clusters = {name: cluster(f"reference-{name}") for name in names}
        self.batch = step_batch(ROWS, domains=DOMAINS, is_offload_states=True)
        self.metrics = []

    def start(self, number=1, batch=None):
        self.batch = self.batch if batch is None else batch
        self.call = ReferenceRequest(
            self.batch, self.clusters, "config", self.teachers,
            None if self.teachers is None else self.batch.non_tensor_batch["domain"],
            self.metrics.append,
        )  # fmt: skip
        assert self.references.start(Iteration(number, number - 1, number), self.call) is self.batch
        return self

    def joined(self, order=SHUFFLED, *edges):
        """Rows in another order and in parts, each joined by itself; ROLL has settings changed."""
        self.batch.meta_info["is_offload_states"] = False
        self.batch.reorder(torch.tensor(order))
        parts = self.batch.parts(*(edges or (2,)))
        for part in parts:
            self.references.join(part)
        return parts

    def has_answers(self):
        return any(key.startswith(ANSWERS) for key in self.batch.batch)

    def run(self, *order):
        """Start and join; whether all rows have what ROLL itself would have answered."""
        return right(self.start().joined(*order), self)


def right(parts, step):
    names = list(step.clusters)
    for part in parts:
        expected = own_logprobs(part, names[0])
        if step.teachers is not None:
            small = own_logprobs(part, "small")
            first = [step.teachers[d][0] == "small" for d in part.non_tensor_batch["domain"]]
            expected[first] = small[first]
        torch.testing.assert_close(part.batch[ANSWERS], expected)
    return True


# ---------------------------------------------------------------- where the rows are computed


def test_all_on_gpus_is_roll_s_own_call_with_its_own_arguments():
    step = Step(runtime := FakeRuntime()).start()
    (call,) = step.compute.calls
    told = step.call
    assert call.given == {
        "batch": told.batch, "references": step.clusters, "pipeline_config": "config",
        "domain_to_teacher_names": None, "domain_values": None, "metrics_fn": told.metrics_fn,
    }  # fmt: skip
    assert call.given["batch"] is told.batch
    assert step.metrics == [{"default/rows": 6.0}]
    assert right([step.batch], step)
    assert runtime.roles("on_stage_start") == ["reference"]
    before = dict(step.batch.batch)
    step.references.join(step.batch)
    assert all(step.batch.batch[key] is tensor for key, tensor in before.items())
    assert (len(step.compute.calls), runtime.roles("submit")) == (1, [])


def test_a_stage_on_its_own_gpus_is_handed_to_the_dispatch_once():
    taken = []
    step = Step(runtime := FakeRuntime())
    name = "reference-default"
    step.clusters["default"] = cluster(
        name, lambda batch, blocking: taken.append(step.references.take_run(name))
    )
    step.start()
    assert taken == runtime.of("reference")
    assert taken[0].t_start_s is None
    assert step.references.take_run(name) is None


def test_rows_with_an_engine_are_in_the_batch_when_they_are_joined_and_not_before():
    step = Step(runtime := FakeRuntime(Action.CONCURRENT)).start()
    assert not step.has_answers()
    assert runtime.roles("land") == []
    assert right(step.joined(SHUFFLED, 1, 4), step)
    assert runtime.roles("land") == runtime.roles("fill") == ["reference"]
    assert step.compute.calls == []
    (run,) = runtime.of("reference")
    assert run.batch.sample_ids == tuple(f"1.{i}" for i in range(6))
    assert run.batch.micro_batch == 4
    assert (run.work.n_sequences, run.work.n_tokens) == (6, 23)


@settings(deadline=None)
@given(st.permutations(range(6)), st.permutations(range(6)), st.integers(1, 5))
def test_rows_are_found_in_any_order_and_in_any_part(first, then, cut):
    step = Step(FakeRuntime(Action.CONCURRENT, bad=[0, 4]))
    step.start(batch=step_batch(ROWS, first))
    assert right(step.joined(then, cut), step)


def test_with_a2_the_rows_have_landed_before_roll_goes_on():
    step = Step(runtime := FakeRuntime(Action.FPGA)).start()
    assert runtime.roles("land") == ["reference"]
    assert right(step.joined(), step)
    assert runtime.roles("land") == ["reference"]


def test_with_a2_no_other_reference_is_computed_beside_the_card():
    order = []
    runtime = FakeRuntime({"reference:large": Action.FPGA})
    step = Step(runtime, TWO, Compute(wait=lambda: order.extend(runtime.roles("land"))))
    step.start()
    assert order == ["reference:large"]
    assert right(step.joined(), step)


def test_images_keep_the_rows_where_roll_puts_them():
    step = Step(runtime := FakeRuntime(Action.CONCURRENT))
    step.batch.non_tensor_batch["multi_modal_inputs"] = np.array([{}] * 6, dtype=object)
    assert step.run()
    assert runtime.of("reference")[0].placement.on_gpu
    assert [call.rows for call in step.compute.calls] == [list(range(6))]


# ---------------------------------------------------------------- what an engine does not answer


@pytest.mark.parametrize("action", [Action.FPGA, Action.CONCURRENT])
def test_rows_that_do_not_arrive_are_roll_s_own_with_the_settings_of_its_call(action):
    step = Step(FakeRuntime(action, bad=[1, 4]))
    assert step.run()
    (call,) = step.compute.calls
    assert call.rows == [1, 4]
    assert call.facts == {"global_step": 0, "is_offload_states": True}
    assert call.given["batch"] is not step.batch
    assert (call.given["pipeline_config"], call.given["domain_values"]) == ("config", None)
    # What ROLL's function does with its batch and its metrics is not seen in the step's.
    assert step.metrics == []
    assert step.batch.meta_info == {"global_step": 0, "is_offload_states": False}


ERRORS = [
    EngineTimeout("late"), EngineCrashed("gone"), InvalidResult("nan"), ValueError("shape"),
    OSError("pipe"), MemoryError(), KeyError("row"),
]  # fmt: skip


@pytest.mark.parametrize("method", ["on_stage_start", "submit", "land", "fill"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_fails_the_training_gets_roll_s_answers(method, error, caplog):
    step = Step(runtime := FakeRuntime(Action.CONCURRENT, broken=[method], error=error))
    assert step.run()
    assert [call.rows for call in step.compute.calls] == [list(range(6))]
    assert f"ecorl: {type(error).__name__}" in caplog.text
    runtime._broken = set()
    step.references.forget()
    assert right(step.start(2, step_batch(ROWS)).joined(), step)
    assert len(step.compute.calls) == 1


def test_rows_that_cannot_be_sent_are_computed_at_once():
    step = Step(runtime := FakeRuntime(Action.CONCURRENT, refuses=True)).start()
    assert right([step.batch], step)
    assert step.references.take_run("reference-default") is runtime.of("reference")[0]


def test_a_stage_whose_rows_cannot_be_made_is_given_up():
    step = Step(runtime := FakeRuntime(Action.CONCURRENT))
    step.clusters["default"].worker_config.infer_batch_size = None
    step.start()
    assert right([step.batch], step)
    assert runtime.roles("forget") == ["reference"]


def test_an_error_of_roll_s_own_function_is_the_training_s():
    step = Step(FakeRuntime(Action.CONCURRENT, bad=[2]), compute=Compute(ValueError("roll's")))
    step.start()
    with pytest.raises(ValueError, match="roll's"):
        step.joined()
    with pytest.raises(ValueError, match="roll's"):
        Step(FakeRuntime(), compute=Compute(ValueError("roll's"))).start()


def test_rows_that_roll_computes_for_ecorl_are_no_stage_of_the_dispatch():
    seen = []
    step = Step(FakeRuntime(Action.CONCURRENT, bad=[2]))
    step.clusters["default"] = cluster(
        "reference-default", lambda batch, blocking: seen.append(step.references.is_unseen)
    )
    assert step.run()
    assert seen == [True]
    assert not step.references.is_unseen


# ---------------------------------------------------------------- the first batch


def test_the_first_batch_of_a_role_is_compared_once():
    runtime = FakeRuntime(BOTH_AWAY)
    step = Step(runtime, TWO, compared=True)
    assert step.run()
    assert [call.names for call in step.compute.calls] == [("large",), ("small",)]
    shifts = runtime.record.evaluations["logprob_shift", "first batch"]
    assert shifts == pytest.approx([0.0] * 5, abs=1e-6)  # a row has no response
    assert right(step.start(2, step_batch(ROWS)).joined(), step)
    assert len(step.compute.calls) == 2


def test_an_exact_engine_is_not_compared():
    step = Step(runtime := FakeRuntime(Action.CONCURRENT), compared=False)
    assert step.run()
    assert (step.compute.calls, runtime.record.evaluations) == ([], {})


def test_a_comparison_that_fails_leaves_the_engine_s_answers(monkeypatch):
    step = Step(runtime := FakeRuntime(Action.CONCURRENT), compared=True)
    monkeypatch.setattr(runtime.record, "evaluation", lambda *_: {}["nothing"])
    assert step.run()
    assert len(step.compute.calls) == 1


# ---------------------------------------------------------------- several references


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize(
    "actions", [BOTH_AWAY, {"reference:large": Action.CONCURRENT}, {}], ids=["both", "one", "none"]
)
def test_each_of_several_references_has_its_rows(actions, routed):
    step = Step(runtime := FakeRuntime(actions), TWO, routed=routed)
    parts = step.start().joined()
    assert right(parts, step)
    for part in parts:
        for name in TWO:
            own = [not routed or name in TEACHERS[d] for d in part.non_tensor_batch["domain"]]
            assert part.batch[f"{ANSWERS}_{name}_mask"].tolist() == own
            expected = own_logprobs(part, name) * torch.tensor(own)[:, None]
            torch.testing.assert_close(part.batch[f"{ANSWERS}_{name}"], expected)
    counts = {run.work.role: run.work.n_sequences for run in runtime.of("reference")}
    assert counts == {
        "reference:large": 3 if routed else 6,
        "reference:small": 4 if routed else 6,
    }
    left = tuple(name for name in TWO if f"reference:{name}" not in actions)
    assert [call.names for call in step.compute.calls] == ([left] if left else [])


def test_bad_rows_of_a_routed_reference_are_computed_by_that_one_alone():
    step = Step(FakeRuntime(BOTH_AWAY, bad=[1]), TWO, routed=True)
    assert step.run()
    # Row 1 of those that the reference has, by their places in the step.
    assert [(call.names, call.rows) for call in step.compute.calls] == [
        (("large",), [3]), (("small",), [2]),
    ]  # fmt: skip
    assert {call.given["domain_to_teacher_names"] for call in step.compute.calls} == {None}


def test_a_reference_that_has_no_rows_is_roll_s_to_fill():
    step = Step(runtime := FakeRuntime(BOTH_AWAY), (*TWO, "idle"), routed=True)
    assert step.run()
    assert {run.work.role for run in runtime.of("reference")} == set(BOTH_AWAY)
    assert [call.names for call in step.compute.calls] == [("idle",)]
    assert not bool(step.batch.batch[f"{ANSWERS}_idle_mask"].any())


# ---------------------------------------------------------------- beside values and old log-probs


class Gate:
    """Holds the thread of a reference until it is opened."""

    def __init__(self):
        self.open, self.threads = threading.Event(), []

    def __call__(self):
        self.threads.append(threading.current_thread())
        assert self.open.wait(240)


def test_with_overlap_roll_goes_on_while_its_function_computes():
    gate = Gate()
    step = Step(FakeRuntime(), compute=Compute(wait=gate), overlap=True).start()
    assert not step.has_answers()
    # ROLL reorders the rows while the thread works on them.
    step.batch.reorder(torch.tensor([5, 4, 3, 2, 1, 0]))
    gate.open.set()
    assert right(step.joined(), step)
    (call,) = step.compute.calls
    assert gate.threads[0] is not threading.main_thread()
    assert call.given["batch"] is not step.batch
    assert call.facts == {"global_step": 0, "is_offload_states": True}


def test_with_overlap_metrics_arrive_where_the_reference_is_joined():
    told = []
    step = Step(FakeRuntime(), compute=Compute(), overlap=True)
    step.metrics = told
    step.start()
    step.references._thread.shutdown()
    assert told == []
    step.joined(SHUFFLED, 1, 3)
    assert told == [{"default/rows": 6.0}]


def test_with_overlap_an_error_is_raised_where_the_reference_is_joined():
    compute = Compute(ZeroDivisionError("roll's"))
    step = Step(FakeRuntime(), compute=compute, overlap=True).start()
    with pytest.raises(ZeroDivisionError, match="roll's"):
        step.references.join(step.batch)


def test_with_overlap_one_reference_may_be_away_and_another_beside():
    gate = Gate()
    runtime = FakeRuntime({"reference:large": Action.CONCURRENT})
    step = Step(runtime, TWO, Compute(wait=gate), routed=True, overlap=True).start()
    gate.open.set()
    assert right(step.joined(), step)
    assert [call.names for call in step.compute.calls] == [("small",)]


# ---------------------------------------------------------------- steps, and ROLL's own calls


def test_what_was_started_is_forgotten_with_its_step():
    step = Step(FakeRuntime(Action.CONCURRENT)).start()
    step.references.forget()
    step.joined()
    assert not step.has_answers()


def test_each_step_has_its_own_rows():
    step = Step(runtime := FakeRuntime(Action.CONCURRENT))
    assert step.run()
    other = step_batch([(tokens[::-1], mask) for tokens, mask in ROWS], [5, 4, 3, 2, 1, 0])
    assert right(step.start(2, other).joined(), step)
    assert {run.batch.sample_ids[0] for run in runtime.of("reference")} == {"1.0", "2.5"}


@pytest.mark.parametrize("routed", [False, True])
def test_without_hooks_roll_s_functions_run_as_they_would(monkeypatch, routed):
    monkeypatch.setattr(hooks, "current", None)
    batch, own = step_batch(ROWS, domains=DOMAINS), Compute()
    given = [batch, {name: cluster(name) for name in TWO}, "config"]
    given += [TEACHERS, batch.non_tensor_batch["domain"], lambda told: None] if routed else []
    assert put_off(own)(*given) is batch
    assert list(own.calls[0].given.values()) == given + [None] * (6 - len(given))
    assert joined(lambda *args, **kwargs: (args, kwargs))("rows", 1, kl_ctrl=2) == (
        ("rows", 1), {"kl_ctrl": 2},
    )  # fmt: skip


def test_with_hooks_they_are_put_off_and_joined(monkeypatch):
    calls = []

    class Seen:
        def compute_references(self, call):
            calls.append(call)
            return call.batch

        def join_references(self, data):
            calls.append(data)

    monkeypatch.setattr(hooks, "current", Seen())
    own, told = Compute(), []
    compute = put_off(own)
    assert compute(batch="b", references={"a": 1}, pipeline_config="c", metrics_fn=told) == "b"
    assert calls == [ReferenceRequest("b", {"a": 1}, "c", None, None, told)]
    assert joined(lambda data, kl_ctrl: (data, kl_ctrl))("rows", kl_ctrl=2) == ("rows", 2)
    assert (calls[1:], own.calls) == (["rows"], [])
