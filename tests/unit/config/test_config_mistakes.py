from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.config import preset_names
from tests.examples import examples

MISTAKES = [
    # text, line, key and value
    ("sed = 1", 1, "sed = 1"),
    ("# c\n\n[trainer]\nstep = 1", 4, "trainer.step = 1"),
    ("[trainr]\nsteps = 1", 1, "trainr = "),
    ('[placement.policy]\ntype = "threshold"\nmax_len = 3', 3, "placement.policy.max_len = 3"),
    ('[task]\ntype = "arithmetic"\nfoo = 1', 3, "task.foo = 1"),
    ('[[engine.faults]]\nkind = "nan"\ncalls = [1]\ncols = 2', 4, "engine.faults.0.cols = 2"),
    ('[task]\ntype = "fils"', 2, "task.type = 'fils'"),
    ("[task]\nn_eval = 20", 1, "task.type = (not given)"),
    ('[telemetry.gpu]\ntype = "xrt"', 2, "telemetry.gpu.type = 'xrt'"),
    ('seed = 1\n[task]\ntype = "files"', 2, "task.policy = (not given)"),
    ('seed = 1\ntask.type = "files"', 2, "task.policy = (not given)"),
    ('seed = 1\n[telemtry.gpu]\ntype = "null"', 2, "telemtry = "),
    ("seed = 1\n[[trainer]]\nsteps = 1", 2, "trainer = [{"),
    ('[engine.offload]\ntype = "plugin"', 1, "engine.offload.name = (not given)"),
    ('[trainer]\nsteps = "many"', 2, "trainer.steps = 'many'"),
    ("[trainer]\nsteps = 1.5", 2, "trainer.steps = 1.5"),
    ("[trainer]\nsteps = true", 2, "trainer.steps = True"),
    ("[placement]\nenergy_margin = true", 2, "placement.energy_margin = True"),
    ("[trainer]\nsteps = 0", 2, "trainer.steps = 0"),
    ("[trainer]\nlearning_rate = nan", 2, "trainer.learning_rate = nan"),
    ("[trainer]\nlearning_rate = inf", 2, "trainer.learning_rate = inf"),
    ("[placement]\ndeadline_s = 0", 2, "placement.deadline_s = 0"),
    ("[ledger]\nraw_samples = -1", 2, "ledger.raw_samples = -1"),
    ('[engine.offload]\ntype = "fpga"\nisolated = "maybe"', 3, "engine.offload.isolated = 'maybe'"),
    ("[devices]\naccelerator = 3", 2, "devices.accelerator = 3"),
    ("run_dir = 3", 1, "run_dir = 3"),
    ("trainer = 3", 1, "trainer = 3"),
    ("task = [1]", 1, "task = [1]"),
    ("[engine]\nfaults = 3", 2, "engine.faults = 3"),
    ('algorithm = "a2c"', 1, "algorithm = 'a2c'"),
    ('name = "a b"', 1, "name = 'a b'"),
    (
        '[placement.policy]\ntype = "static"\nreward = "tpu"',
        3,
        "placement.policy.reward = 'tpu'",
    ),
    (
        "[trainer]\nnum_generations = 4\nper_device_batch_size = 10",
        3,
        "trainer.per_device_batch_size = 10",
    ),
    ('run_dir = "runs/{foo}"', 1, "run_dir = 'runs/{foo}'"),
    ('run_dir = "runs/{"', 1, "run_dir = 'runs/{'"),
    ('run_dir = "runs/{name.x}"', 1, "run_dir = 'runs/{name.x}'"),
]


def test_a_mistake_is_named_with_key_value_allowed_file_and_line(refusal, write, snapshot):
    messages = []
    for text, line, key_and_value in MISTAKES:
        path = write(text)
        messages.append(refusal(path))
        assert messages[-1].startswith(f"{path}:{line}: {key_and_value}")
    snapshot("\n".join(messages))


def test_a_mistake_in_a_preset_that_an_override_uncovers_names_the_preset(refusal, snapshot):
    message = refusal("demo", 'engine.offload.type="torch"')
    snapshot(re.sub(r"^preset demo:\d+:", "preset demo:<line>:", message))


def test_a_syntax_error_names_the_line_and_shows_it(refusal, write):
    for text, line, shown in (
        ("seed = 1\nx = [\n", 2, ""),
        ("a = 1\nb = 2\na = 3\n", 3, "'a = 3'"),
        ("[trainer\nsteps = 1", 1, "'[trainer'"),
        ("seed =", 1, "'seed ='"),
    ):
        path = write(text)
        assert refusal(path).startswith(f"{path}:{line}: (syntax) = {shown}")


def test_a_file_that_is_not_utf_8_names_the_line(refusal, write):
    path = write(b"seed = 1\nname = '\xff'\n")
    message = refusal(path)
    assert message.startswith(f"{path}:2: ")
    assert "0xff" in message


@pytest.mark.parametrize("source", ["nope", "", "/", "no/such.toml", "a\x00b"])
def test_a_missing_file_lists_the_presets(refusal, source):
    message = refusal(source)
    assert f"--config = {source!r}" in message
    for name in preset_names():
        assert repr(name) in message


@pytest.mark.parametrize("item", ["trainer", "=3", "", "..=1", "trainer..steps=1", ".seed=1"])
def test_an_override_without_a_key_or_value_is_refused(refusal, item):
    assert refusal("demo", item).startswith(f"--set = {item!r}: allowed is dotted.key=value")


def test_an_override_may_not_hide_a_second_one(refusal, snapshot):
    snapshot(refusal("demo", "seed=1\nname='x'"))


def test_a_mistake_in_an_override_is_reported_as_one(refusal, snapshot):
    messages = []
    for overrides, key_and_value in (
        (["trainer.steps=0"], "trainer.steps = 0"),
        (["trainer.steps="], "trainer.steps = ''"),
        (["trainer.stps=1"], "trainer.stps = 1"),
        (["nothing.here=1"], "nothing = {'here': 1}"),
        (["seed.x=1"], "seed.x = 1"),
        (["trainer={steps=0}"], "trainer.steps = 0"),
        (["trainer=3"], "trainer = 3"),
        (["task.type=fils"], "task.type = 'fils'"),
        (["task.type=files"], "task.policy = (not given)"),
        (['engine.faults=[{kind="boom",calls=[1]}]'], "engine.faults.0.kind = 'boom'"),
        (["trainer.per_device_batch_size=12"], "trainer.per_device_batch_size = 12"),
        (["trainer.num_generations=7"], "trainer.num_generations = 7"),
        (
            ["trainer.num_generations=7", "trainer.per_device_batch_size=10"],
            "trainer.per_device_batch_size = 10",
        ),
        (["run_dir={x}"], "run_dir = '{x}'"),
    ):
        messages.append(refusal("demo", *overrides))
        assert messages[-1].startswith(f"--set {key_and_value}: ")
    snapshot("\n".join(messages))


def test_a_mistake_in_the_file_is_not_blamed_on_another_override(refusal, write):
    path = write("[trainer]\nsteps = 0\n")
    assert refusal(path, "trainer.beta=0.1", "seed=3").startswith(f"{path}:2: trainer.steps = 0")


def test_the_overridden_one_of_two_weights_is_blamed(refusal, write):
    path = write('[placement.policy]\ntype = "lookahead"\nenergy_weight = 0.0\n')
    message = refusal(path, "placement.policy.time_weight=0.0")
    assert message.startswith("--set placement.policy.time_weight = 0.0: ")
    assert "energy_weight" in message


LINES = [
    ("[trainer] # [comment] steps = 3\n# steps = 0\nsteps = 0", 3),
    ('adapter = """\n[trainer]\nsteps = 5"""\n[trainer]\nsteps = 0', 5),
    ("trainer.steps = 0", 1),
    ("seed = 1\ntrainer.beta = 0.1\ntrainer.steps = 0", 3),
    ('[ "trainer" ]\n\n"steps" = 0', 3),
    ("trainer = {beta = 0.1, steps = 0}", 1),
    ("seed = 1\r\n[trainer]\r\nsteps = 0\r\n", 3),
    ("[trainer]\nbeta = 0.1\n[ledger]\n[trainer.x]\n", 4),
]


@pytest.mark.parametrize(("text", "line"), LINES)
def test_the_line_is_right_however_the_key_is_written(refusal, write, text, line):
    path = write(text)
    assert refusal(path).startswith(f"{path}:{line}: ")


def test_the_line_is_that_of_the_right_element_of_an_array_of_tables(refusal, write):
    good = '[[engine.faults]]\nkind = "nan"\ncalls = [1]\n'
    path = write(good + "\n" + good.replace("nan", "boom"))
    assert refusal(path).startswith(f"{path}:6: engine.faults.1.kind = 'boom'")
    path = write("[engine]\nfaults = [\n  {kind='nan', calls=[1]},\n  {kind='boom', calls=[1]},\n]")
    assert refusal(path).startswith(f"{path}:4: engine.faults.1.kind = 'boom'")
    path = write(
        "[engine]\nfaults = [\n  {kind='nan', calls=[1]},\n  {kind='nan', calls=['x']},\n]"
    )
    assert "engine.faults.1.calls.0 = 'x': " in refusal(path)


@given(
    before=st.lists(
        st.sampled_from(["", "# steps = 0", "beta = 0.1 # [x]", "save_every = 5", "  "]),
        unique=True,
    ),
    after=st.lists(st.sampled_from(["", "# [trainer]", "log_every = 2"]), unique=True),
)
@settings(max_examples=examples(60), deadline=None)
def test_the_line_does_not_depend_on_what_stands_around_it(
    refusal, tmp_path_factory, before, after
):
    path = tmp_path_factory.mktemp("c") / "c.toml"
    path.write_text("\n".join(["seed = 3", "[trainer]", *before, "  steps = -4", *after]))
    assert refusal(path).startswith(f"{path}:{3 + len(before)}: trainer.steps = -4")


def test_a_key_that_does_not_print_is_shown_quoted(refusal, write):
    path = write('[trainer]\n"a\\nb" = 1\n')
    assert refusal(path).startswith(f"{path}:2: trainer.'a\\nb' = 1: ")


# ---------------------------------------------------------------- values that make no sense

SENSELESS = [
    # override, key and value
    ('run_dir=""', "run_dir = ''"),
    ("run_dir=", "run_dir = ''"),
    ("run_dir= ", "run_dir = ''"),
    ('run_dir="a\\u0000b"', "run_dir = 'a\\x00b'"),
    ('task={type="arithmetic", cache_dir=""}', "task.cache_dir = ''"),
    ('task={type="files", policy="", reward="r", prompts="p"}', "task.policy = ''"),
    (
        'placement.policy={type="lookahead", energy_weight=0, time_weight=0}',
        "placement.policy.energy_weight = 0.0",
    ),
    ('engine.faults=[{kind="nan", calls=[-5, true]}]', "engine.faults.0.calls.0 = -5"),
    ('engine.faults=[{kind="nan", calls=[1, true]}]', "engine.faults.0.calls.1 = True"),
    ('engine.faults=[{kind="nan", calls=[]}]', "engine.faults.0.calls = []"),
    ('engine.faults=[{kind="nan", calls=[1], rows=[-1]}]', "engine.faults.0.rows.0 = -1"),
    (
        'engine.offload={type="plugin", name="x", options={a=nan}}',
        "engine.offload.options.a = nan",
    ),
    (
        'engine.offload={type="plugin", name="x", options={a=[1.0, {"b.c"=nan}]}}',
        "engine.offload.options.a.1.b.c = nan",
    ),
    ("trainer.steps=99999999999999999999", "trainer.steps = 99999999999999999999"),
    (
        "trainer.num_generations=99999999999999999999",
        "trainer.num_generations = 99999999999999999999",
    ),
    ("trainer.save_every=99999999999999999999", "trainer.save_every = 99999999999999999999"),
    ("placement.max_faults=99999999999999999999", "placement.max_faults = 99999999999999999999"),
    ("placement.n_profiling=99999999999999999999", "placement.n_profiling = 99999999999999999999"),
    ('adapter=""', "adapter = ''"),
    ('devices.gpu=""', "devices.gpu = ''"),
    ('devices.accelerator=" "', "devices.accelerator = ' '"),
    ('accounting.source=""', "accounting.source = ''"),
    ('accounting.source="  "', "accounting.source = '  '"),
    ("devices.n_accelerators=65", "devices.n_accelerators = 65"),
    ('seed="7"', "seed = '7'"),
    ("seed=7.0", "seed = 7.0"),
    ("engine.offload.isolated=off", "engine.offload.isolated = 'off'"),
    ("engine.offload.isolated=1", "engine.offload.isolated = 1"),
    ('placement.edi_alpha="0.1"', "placement.edi_alpha = '0.1'"),
]


def test_a_value_that_makes_no_sense_is_refused(refusal, snapshot):
    messages = []
    for override, key_and_value in SENSELESS:
        messages.append(refusal("demo", override))
        assert messages[-1].startswith(f"--set {key_and_value}: ")
    snapshot("\n".join(messages))


def test_an_override_that_is_not_utf_8_is_refused(refusal):
    message = refusal("demo", "run_dir=/tmp/\udcff")
    assert message.startswith(r"--set = 'run_dir=/tmp/\udcff': ")
    assert "UTF-8" in message
