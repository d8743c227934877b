from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.config import preset_names
from tests.examples import examples

MISTAKES = [
    # text, line, what the message must say
    ("sed = 1", 1, ["sed = 1", "'accounting'", "'trainer'", "is 'seed' meant?"]),
    ("# c\n\n[trainer]\nstep = 1", 4, ["trainer.step = 1", "'steps'", "'temperature'"]),
    ("[trainr]\nsteps = 1", 1, ["trainr = ", "is 'trainer' meant?"]),
    (
        '[placement.policy]\ntype = "threshold"\nmax_len = 3',
        3,
        ["placement.policy.max_len = 3", "['max_length', 'max_queue', 'type']", "'threshold'"],
    ),
    ('[task]\ntype = "arithmetic"\nfoo = 1', 3, ["task.foo = 1", "'cache_dir'"]),
    (
        '[[engine.faults]]\nkind = "nan"\ncalls = [1]\ncols = 2',
        4,
        ["engine.faults.0.cols = 2", "['calls', 'kind', 'rows']"],
    ),
    ('[task]\ntype = "fils"', 2, ["task.type = 'fils'", "'arithmetic' or 'files'"]),
    ("[task]\nn_eval = 20", 1, ["task.type = (not given)", "'arithmetic' or 'files'"]),
    ('[telemetry.gpu]\ntype = "xrt"', 2, ["telemetry.gpu.type = 'xrt'", "'null'", "'nvml'"]),
    (
        'seed = 1\n[task]\ntype = "files"',
        2,
        ["task.policy = (not given)", "a path", "checkpoint folder of the policy"],
    ),
    ('seed = 1\ntask.type = "files"', 2, ["task.policy = (not given)"]),
    ('seed = 1\n[telemtry.gpu]\ntype = "null"', 2, ["telemtry = ", "is 'telemetry' meant?"]),
    ("seed = 1\n[[trainer]]\nsteps = 1", 2, ["trainer = [{", "a table"]),
    ('[engine.offload]\ntype = "plugin"', 1, ["engine.offload.name = (not given)", "text"]),
    ('[trainer]\nsteps = "many"', 2, ["trainer.steps = 'many'", "a whole number of at least 1"]),
    ("[trainer]\nsteps = 1.5", 2, ["trainer.steps = 1.5", "a whole number"]),
    ("[trainer]\nsteps = true", 2, ["trainer.steps = True", "a whole number"]),
    ("[placement]\nenergy_margin = true", 2, ["placement.energy_margin = True", "a number"]),
    ("[trainer]\nsteps = 0", 2, ["trainer.steps = 0", "at least 1"]),
    ("[trainer]\nlearning_rate = nan", 2, ["trainer.learning_rate = nan", "a number above 0"]),
    ("[trainer]\nlearning_rate = inf", 2, ["trainer.learning_rate = inf", "a number above 0"]),
    ("[placement]\ndeadline_s = 0", 2, ["above 0 and at most 3600"]),
    ("[ledger]\nraw_samples = -1", 2, ["at least 0 and at most 10000000"]),
    ('[engine.offload]\ntype = "fpga"\nisolated = "maybe"', 3, ["true or false"]),
    ("[devices]\naccelerator = 3", 2, ["devices.accelerator = 3", "text"]),
    ("run_dir = 3", 1, ["run_dir = 3", "a path"]),
    ("trainer = 3", 1, ["trainer = 3", "a table"]),
    ("task = [1]", 1, ["task = [1]", "a table"]),
    ("[engine]\nfaults = 3", 2, ["engine.faults = 3", "a list of tables"]),
    ('algorithm = "a2c"', 1, ["algorithm = 'a2c'", "'ppo', 'grpo', 'rloo', 'reinforce++' or"]),
    ('name = "a b"', 1, ["name = 'a b'", "[A-Za-z0-9._-]+"]),
    (
        '[placement.policy]\ntype = "static"\nreward = "tpu"',
        3,
        ["placement.policy.reward = 'tpu'", "'gpu', 'fpga' or 'concurrent'"],
    ),
    (
        "[trainer]\nnum_generations = 4\nper_device_batch_size = 10",
        3,
        ["trainer.per_device_batch_size = 10", "a multiple of trainer.num_generations = 4"],
    ),
    ('run_dir = "runs/{foo}"', 1, ["run_dir = 'runs/{foo}'", "{name}, {seed} and {time}"]),
    ('run_dir = "runs/{"', 1, ["{name}, {seed} and {time}"]),
    ('run_dir = "runs/{name.x}"', 1, ["{name}, {seed} and {time}"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "parts"), MISTAKES)
def test_a_mistake_is_named_with_key_value_allowed_file_and_line(refusal, write, text, line, parts):
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: "), message
    assert ": allowed is " in message
    for part in parts:
        assert part in message, message


def test_a_mistake_in_a_preset_that_an_override_uncovers_names_the_preset(refusal):
    message = refusal("demo", 'engine.offload.type="torch"')
    assert re.match(r"preset demo:\d+: engine\.offload\.build = 'fast'", message)
    assert "(the keys of type 'torch')" in message


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("seed = 1\nx = [\n", 2, "(syntax)"),
        ("a = 1\nb = 2\na = 3\n", 3, "'a = 3'"),
        ("[trainer\nsteps = 1", 1, "'[trainer'"),
        ("seed =", 1, "'seed ='"),
    ],
)
def test_a_syntax_error_names_the_line_and_shows_it(refusal, write, text, line, part):
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: (syntax)")
    assert part in message
    assert "valid TOML" in message


def test_a_file_that_is_not_utf_8_names_the_line(refusal, write):
    path = write(b"seed = 1\nname = '\xff'\n")
    message = refusal(path)
    assert message.startswith(f"{path}:2: ")
    assert "UTF-8 (byte 0xff is not)" in message


@pytest.mark.parametrize("source", ["nope", "", "/", "no/such.toml", "a\x00b"])
def test_a_missing_file_lists_the_presets(refusal, source):
    message = refusal(source)
    assert f"--config = {source!r}" in message
    for name in preset_names():
        assert repr(name) in message


@pytest.mark.parametrize("item", ["trainer", "=3", "", "..=1", "trainer..steps=1", ".seed=1"])
def test_an_override_without_a_key_or_value_is_refused(refusal, item):
    assert refusal("demo", item) == f"--set = {item!r}: allowed is dotted.key=value"


def test_an_override_may_not_hide_a_second_one(refusal):
    assert "repeat --set for more" in refusal("demo", "seed=1\nname='x'")


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        (["trainer.steps=0"], "--set trainer.steps = 0: allowed is a whole number of at least 1"),
        (["trainer.steps="], "--set trainer.steps = '': allowed is a whole number"),
        (["trainer.stps=1"], "--set trainer.stps = 1: allowed is one of"),
        (["nothing.here=1"], "--set nothing = {'here': 1}: allowed is one of"),
        (["seed.x=1"], "--set seed.x = 1: allowed is a key below a table; seed is a value"),
        (["trainer={steps=0}"], "--set trainer.steps = 0: allowed is"),
        (["trainer=3"], "--set trainer = 3: allowed is a table"),
        (["task.type=fils"], "--set task.type = 'fils': allowed is 'arithmetic' or 'files'"),
        (["task.type=files"], "--set task.policy = (not given): allowed is a path"),
        (['engine.faults=[{kind="boom",calls=[1]}]'], "--set engine.faults.0.kind = 'boom'"),
        (["trainer.per_device_batch_size=12"], "--set trainer.per_device_batch_size = 12: "),
        (
            ["trainer.num_generations=7"],
            "--set trainer.num_generations = 7: allowed is a divisor of "
            "trainer.per_device_batch_size = 64",
        ),
        (
            ["trainer.num_generations=7", "trainer.per_device_batch_size=10"],
            "--set trainer.per_device_batch_size = 10: ",
        ),
        (["run_dir={x}"], "--set run_dir = '{x}': allowed is a path"),
    ],
)
def test_a_mistake_in_an_override_is_reported_as_one(refusal, overrides, start):
    assert refusal("demo", *overrides).startswith(start)


def test_a_mistake_in_the_file_is_not_blamed_on_another_override(refusal, write):
    path = write("[trainer]\nsteps = 0\n")
    assert refusal(path, "trainer.beta=0.1", "seed=3").startswith(f"{path}:2: trainer.steps = 0")


def test_the_overridden_one_of_two_weights_is_blamed(refusal, write):
    path = write('[placement.policy]\ntype = "lookahead"\nenergy_weight = 0.0\n')
    message = refusal(path, "placement.policy.time_weight=0.0")
    assert message.startswith("--set placement.policy.time_weight = 0.0: allowed is a number above")
    assert "here or in energy_weight" in message


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
    assert "engine.faults.1.calls.0 = 'x': allowed is a whole number" in refusal(path)


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
    assert refusal(path).startswith(f"{path}:2: trainer.'a\\nb' = 1: allowed is one of")


# ---------------------------------------------------------------- values that make no sense

SENSELESS = [
    # overrides, what the message must say
    (['run_dir=""'], ["--set run_dir = ''", "a path in quotes that is not empty"]),
    (["run_dir="], ["--set run_dir = ''", "a path in quotes that is not empty"]),
    (["run_dir= "], ["--set run_dir = ''"]),
    (['run_dir="a\\u0000b"'], ["--set run_dir = 'a\\x00b'", "holds no NUL"]),
    (['task={type="arithmetic", cache_dir=""}'], ["--set task.cache_dir = ''", "not empty"]),
    (['task={type="files", policy="", reward="r", prompts="p"}'], ["--set task.policy = ''"]),
    (
        ['placement.policy={type="lookahead", energy_weight=0, time_weight=0}'],
        ["--set placement.policy.energy_weight = 0.0", "above 0, here or in time_weight"],
    ),
    (
        ['engine.faults=[{kind="nan", calls=[-5, true]}]'],
        ["--set engine.faults.0.calls.0 = -5", "a whole number of at least 0"],
    ),
    (
        ['engine.faults=[{kind="nan", calls=[1, true]}]'],
        ["--set engine.faults.0.calls.1 = True", "a whole number of at least 0"],
    ),
    (
        ['engine.faults=[{kind="nan", calls=[]}]'],
        ["engine.faults.0.calls = []", "a list of whole numbers of at least 0 that is not empty"],
    ),
    (['engine.faults=[{kind="nan", calls=[1], rows=[-1]}]'], ["engine.faults.0.rows.0 = -1"]),
    (
        ['engine.offload={type="plugin", name="x", options={a=nan}}'],
        ["--set engine.offload.options.a = nan", "not nan"],
    ),
    (
        ['engine.offload={type="plugin", name="x", options={a=[1.0, {"b.c"=nan}]}}'],
        ["--set engine.offload.options.a.1.b.c = nan"],
    ),
    (["trainer.steps=99999999999999999999"], ["at least 1 and at most 10000000"]),
    (["trainer.num_generations=99999999999999999999"], ["at most 1000000"]),
    (["trainer.save_every=99999999999999999999"], ["at most 10000000"]),
    (["placement.max_faults=99999999999999999999"], ["at most 10000000"]),
    (["placement.n_profiling=99999999999999999999"], ["at most 10000000"]),
    (['adapter=""'], ["--set adapter = ''", "text in quotes that is not empty"]),
    (['devices.gpu=""'], ["--set devices.gpu = ''", "not empty"]),
    (['devices.accelerator=" "'], ["--set devices.accelerator = ' '", "not empty"]),
    (['accounting.source=""'], ["--set accounting.source = ''", "not empty"]),
    (['accounting.source="  "'], ["--set accounting.source = '  '", "not empty"]),
    (
        ["devices.n_accelerators=65"],
        ["--set devices.n_accelerators = 65", "a whole number of at least 1 and at most 64"],
    ),
    (['seed="7"'], ["--set seed = '7'", "a whole number"]),
    (["seed=7.0"], ["--set seed = 7.0", "a whole number"]),
    (["engine.offload.isolated=off"], ["isolated = 'off'", "true or false"]),
    (["engine.offload.isolated=1"], ["isolated = 1", "true or false"]),
    (['placement.edi_alpha="0.1"'], ["edi_alpha = '0.1'", "a number"]),
]


@pytest.mark.parametrize(("overrides", "parts"), SENSELESS)
def test_a_value_that_makes_no_sense_is_refused(refusal, overrides, parts):
    message = refusal("demo", *overrides)
    for part in parts:
        assert part in message, message


def test_an_override_that_is_not_utf_8_is_refused(refusal):
    message = refusal("demo", "run_dir=/tmp/\udcff")
    assert message == r"--set = 'run_dir=/tmp/\udcff': allowed is dotted.key=value in UTF-8"
