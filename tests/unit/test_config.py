from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from ecorl import config as cfg
from ecorl.config import config_toml, load_config, preset_names, save_config
from ecorl.errors import ConfigError, UserError
from ecorl.records import Action, Algorithm

JARGON = re.compile(r"Input should|unable to parse|dictionary|instance of|pydantic|String should")


@pytest.fixture
def write(tmp_path):
    def write(text, name="c.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refusal(path, *overrides):
    """The one line that a mistake ends with."""
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert not JARGON.search(message), message
    return message


# ---------------------------------------------------------------- reading and writing


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_reads_and_writes_back_equal(name, tmp_path):
    config = load_config(name)
    save_config(config, tmp_path / "saved.toml")
    assert load_config(str(tmp_path / "saved.toml")) == config


def test_an_empty_file_is_the_defaults(write):
    assert load_config(str(write(""))) == cfg.Config()


def test_a_byte_order_mark_does_no_harm(write):
    assert load_config(str(write(b"\xef\xbb\xbfseed = 7\n"))).seed == 7


TOML_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
TOML_VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        TOML_TEXT,
        st.datetimes().map(lambda t: t.replace(microsecond=0)),
        st.dates(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TOML_TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
POLICIES = st.one_of(
    st.builds(cfg.StaticPolicy, reward=st.sampled_from(Action)),
    st.builds(cfg.ThresholdPolicy, max_length=st.integers(1, 9999), max_queue=st.integers(0, 9)),
    st.builds(cfg.LookaheadPolicy, energy_weight=st.floats(0, 1)),
    st.builds(cfg.LearnedPolicy, name=TOML_TEXT, path=st.none() | st.just(Path("a b/é.onnx"))),
)
OFFLOADS = st.one_of(
    st.builds(cfg.FpgaEngine, build=st.sampled_from(["fast", "strict"]), isolated=st.booleans()),
    st.builds(
        cfg.PluginEngine,
        name=TOML_TEXT,
        options=st.dictionaries(TOML_TEXT, TOML_VALUES, max_size=3),
    ),
)
FAULTS = st.builds(
    cfg.FaultInjection,
    kind=st.sampled_from(["raise", "hang", "nan", "shape", "exit"]),
    calls=st.lists(st.integers(-9, 99), max_size=3).map(tuple),
)
CONFIGS = st.builds(
    cfg.Config,
    seed=st.integers(0, 2**31 - 1),
    name=st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True),
    task=st.builds(
        cfg.FilesTask,
        policy=st.just(Path("p")),
        reward=st.just(Path("~/r")),
        prompts=st.just(Path("/x y/p.jsonl")),
        pairs=st.none() | st.just(Path("q")),
    ),
    placement=st.builds(
        cfg.PlacementConfig,
        policy=POLICIES,
        energy_margin=st.none() | st.floats(0, 1e300),
        deadline_s=st.floats(0, 3600, exclude_min=True),
    ),
    engine=st.builds(
        cfg.EngineConfig, offload=OFFLOADS, faults=st.lists(FAULTS, max_size=2).map(tuple)
    ),
    accounting=st.builds(cfg.AccountingConfig, source=TOML_TEXT),
)


@given(CONFIGS)
@settings(max_examples=60, deadline=None)
def test_any_config_written_reads_back_equal(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("c") / "c.toml"
    save_config(config, path)
    assert load_config(str(path)) == config


@given(
    steps=st.integers(1, 10**6),
    rate=st.floats(1e-12, 1e3),
    name=st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True),
    isolated=st.booleans(),
    calls=st.lists(st.integers(0, 99), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_overrides_are_what_the_file_would_say(steps, rate, name, isolated, calls):
    overrides = [
        f"trainer.steps={steps}",
        f"trainer.learning_rate = {rate!r}",
        f'name="{name}"',
        f"engine.offload.isolated={str(isolated).lower()}",
        f'engine.faults=[{{kind="nan", calls={calls}}}]',
    ]
    config = load_config("demo", overrides)
    assert (config.trainer.steps, config.trainer.learning_rate) == (steps, rate)
    assert (config.name, config.engine.offload.isolated) == (name, isolated)
    assert config.engine.faults[0].calls == tuple(calls)
    rest = config.model_copy(update={"trainer": None, "name": None, "engine": None})
    preset = load_config("demo").model_copy(update={"trainer": None, "name": None, "engine": None})
    assert rest == preset


def test_a_bare_word_in_an_override_is_text():
    assert load_config("demo", ["name=second", "devices.fpga=u280"]).devices.fpga == "u280"


def test_the_last_override_of_a_key_wins():
    assert load_config("demo", ["seed=1", "seed=2"]).seed == 2


def test_none_is_left_out_of_the_text():
    assert "energy_margin" not in config_toml(cfg.Config())
    assert "energy_margin" in config_toml(load_config("demo", ["placement.energy_margin=0.1"]))


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        cfg.Config().trainer.steps = 3


def test_name_and_seed_are_filled_into_the_run_folder():
    config = load_config("demo", ["run_dir=out/{name}/{seed:03d}", "seed=7"])
    assert config.resolved_run_dir() == Path("out/demo/007")
    assert load_config("demo", ["run_dir=~/x"]).resolved_run_dir() == Path.home() / "x"


@pytest.mark.parametrize("name", get_args(cfg.Config.model_fields["algorithm"].annotation))
def test_every_algorithm_has_a_record(name):
    assert cfg.Config(algorithm=name).algorithm_enum is Algorithm(name)


def models_below(model, seen):
    """Every table of the configuration, back-ends included."""
    if model in seen:
        return
    seen.add(model)
    todo = [f.annotation for f in model.model_fields.values()]
    while todo:
        annotation = todo.pop()
        todo += get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            models_below(annotation, seen)


def test_every_key_is_described():
    seen = set()
    models_below(cfg.Config, seen)
    assert len(seen) > 20
    for model in seen:
        assert model.__doc__, model
        for name, field in model.model_fields.items():
            assert name == "type" or field.description, f"{model.__name__}.{name}"


# ---------------------------------------------------------------- mistakes


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
    ("[devices]\nfpga = 3", 2, ["devices.fpga = 3", "text"]),
    ("run_dir = 3", 1, ["run_dir = 3", "a path"]),
    ("trainer = 3", 1, ["trainer = 3", "a table"]),
    ("task = [1]", 1, ["task = [1]", "a table"]),
    ("[engine]\nfaults = 3", 2, ["engine.faults = 3", "a list of tables"]),
    ('algorithm = "ppo"', 1, ["algorithm = 'ppo'", "'grpo' or 'rloo'"]),
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
    ('run_dir = "runs/{foo}"', 1, ["run_dir = 'runs/{foo}'", "{name} and {seed}"]),
    ('run_dir = "runs/{"', 1, ["{name} and {seed}"]),
    ('run_dir = "runs/{name.x}"', 1, ["{name} and {seed}"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "parts"), MISTAKES)
def test_a_mistake_is_named_with_key_value_allowed_file_and_line(write, text, line, parts):
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: "), message
    assert ": allowed is " in message
    for part in parts:
        assert part in message, message


def test_a_mistake_in_a_preset_that_an_override_uncovers_names_the_preset():
    message = refusal("demo", 'placement.policy.type="static"')
    assert re.match(r"preset demo:\d+: placement\.policy\.max_length = 2048", message)
    assert "(the keys of type 'static')" in message


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("seed = 1\nx = [\n", 2, "(syntax)"),
        ("a = 1\nb = 2\na = 3\n", 3, "'a = 3'"),
        ("[trainer\nsteps = 1", 1, "'[trainer'"),
        ("seed =", 1, "'seed ='"),
    ],
)
def test_a_syntax_error_names_the_line_and_shows_it(write, text, line, part):
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: (syntax)")
    assert part in message
    assert "valid TOML" in message


def test_a_file_that_is_not_utf_8_names_the_line(write):
    path = write(b"seed = 1\nname = '\xff'\n")
    message = refusal(path)
    assert message.startswith(f"{path}:2: ")
    assert "UTF-8 (byte 0xff is not)" in message


@pytest.mark.parametrize("source", ["nope", "", "/", "no/such.toml", "a\x00b"])
def test_a_missing_file_lists_the_presets(source):
    message = refusal(source)
    assert f"--config = {source!r}" in message
    for name in preset_names():
        assert repr(name) in message


@pytest.mark.parametrize("item", ["trainer", "=3", "", "..=1", "trainer..steps=1", ".seed=1"])
def test_an_override_without_a_key_or_value_is_refused(item):
    assert refusal("demo", item) == f"--set = {item!r}: allowed is dotted.key=value"


def test_an_override_may_not_hide_a_second_one():
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
        (["run_dir={x}"], "--set run_dir = '{x}': allowed is a path"),
    ],
)
def test_a_mistake_in_an_override_is_reported_as_one(overrides, start):
    assert refusal("demo", *overrides).startswith(start)


def test_a_mistake_in_the_file_is_not_blamed_on_another_override(write):
    path = write("[trainer]\nsteps = 0\n")
    assert refusal(path, "trainer.beta=0.1", "seed=3").startswith(f"{path}:2: trainer.steps = 0")


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
def test_the_line_is_right_however_the_key_is_written(write, text, line):
    path = write(text)
    assert refusal(path).startswith(f"{path}:{line}: ")


def test_the_line_is_that_of_the_right_element_of_an_array_of_tables(write):
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
@settings(max_examples=60, deadline=None)
def test_the_line_does_not_depend_on_what_stands_around_it(tmp_path_factory, before, after):
    path = tmp_path_factory.mktemp("c") / "c.toml"
    path.write_text("\n".join(["seed = 3", "[trainer]", *before, "  steps = -4", *after]))
    assert refusal(path).startswith(f"{path}:{3 + len(before)}: trainer.steps = -4")


ANY_KEY = st.sampled_from(
    [
        "seed",
        "name",
        "trainer",
        "task",
        "engine",
        "type",
        "policy",
        "placement",
        "x.y",
        "",
        "faults",
    ]
)


@given(
    st.dictionaries(
        ANY_KEY,
        st.one_of(TOML_VALUES, st.dictionaries(ANY_KEY, TOML_VALUES, max_size=3)),
        max_size=4,
    )
)
@settings(max_examples=150, deadline=None)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_line(tmp_path_factory, data):
    import tomlkit

    path = tmp_path_factory.mktemp("c") / "c.toml"
    path.write_text(tomlkit.dumps(data), encoding="utf-8")
    try:
        config = load_config(str(path))
    except ConfigError as caught:
        error = caught
    else:
        assert tomllib.loads(config_toml(config))
        return
    assert isinstance(error, UserError)
    assert len(str(error).splitlines()) == 1
    assert not JARGON.search(error.args[0].partition("allowed is")[2])
    assert error.line is None or 1 <= error.line <= path.read_text().count("\n") + 1


def test_a_key_that_does_not_print_is_shown_quoted(write):
    path = write('[trainer]\n"a\\nb" = 1\n')
    assert refusal(path).startswith(f"{path}:2: trainer.'a\\nb' = 1: allowed is one of")


def test_numbers_are_finite_everywhere():
    seen = set()
    models_below(cfg.Config, seen)
    for model in seen:
        for name, field in model.model_fields.items():
            if field.annotation not in (float, float | None):
                continue
            for value in (math.inf, -math.inf, math.nan):
                with pytest.raises(ValueError, match=name):
                    model.model_validate({name: value})
