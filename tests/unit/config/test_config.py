from __future__ import annotations

import math
import tomllib
from pathlib import Path
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

import pytest
from config_values import JARGON, TOML_TEXT, TOML_VALUES
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ecorl import config as cfg
from ecorl.config import config_toml, load_config, preset_names
from ecorl.errors import ConfigError, UserError
from ecorl.records import Action, Algorithm, Stage
from tests.examples import examples

# ---------------------------------------------------------------- reading and writing


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_reads_and_writes_back_equal(name, tmp_path):
    config = load_config(name)
    (tmp_path / "saved.toml").write_text(config_toml(config), encoding="utf-8")
    assert load_config(str(tmp_path / "saved.toml")) == config


def test_an_empty_file_is_the_defaults(write):
    assert load_config(str(write(""))) == cfg.Config()


def test_a_byte_order_mark_does_no_harm(write):
    assert load_config(str(write(b"\xef\xbb\xbfseed = 7\n"))).seed == 7


WORDS = TOML_TEXT.filter(str.strip)
POLICIES = st.one_of(
    st.builds(cfg.StaticPolicyConfig, reward=st.sampled_from(Action)),
    st.builds(
        cfg.ThresholdPolicyConfig, max_length=st.integers(1, 9999), max_queue=st.integers(0, 9)
    ),
    st.builds(cfg.LookaheadPolicyConfig, energy_weight=st.floats(0, 1)),
    st.builds(cfg.LearnedPolicyConfig, name=WORDS, path=st.none() | st.just(Path("a b/é.onnx"))),
)
OFFLOADS = st.one_of(
    st.builds(
        cfg.FpgaEngineConfig, build=st.sampled_from(["fast", "strict"]), isolated=st.booleans()
    ),
    st.builds(
        cfg.PluginEngineConfig,
        name=WORDS,
        options=st.dictionaries(TOML_TEXT, TOML_VALUES, max_size=3),
    ),
)
FAULTS = st.builds(
    cfg.FaultInjection,
    kind=st.sampled_from(["raise", "hang", "nan", "shape", "exit"]),
    calls=st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
)
ROLES = st.builds(
    lambda stage, name: str(stage) + name,
    st.sampled_from(Stage),
    st.just("") | st.from_regex(r":[A-Za-z0-9_.-]+", fullmatch=True),
)
PLACES = st.one_of(
    st.builds(
        cfg.Place,
        node=st.none() | WORDS,
        count=st.none() | st.integers(1, 4096),
        profile=st.none() | WORDS,
    ),
    st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=3).map(
        lambda numbers: cfg.Place(devices=tuple(map(str, numbers)), count=len(numbers))
    ),
)
RUNTIMES = st.one_of(
    st.builds(cfg.LocalRuntimeConfig),
    st.builds(
        cfg.RayRuntimeConfig,
        address=st.sampled_from(["auto", "local", "head-1.example:6379", "[fe80::1]:1"]),
        namespace=WORDS,
        patience_s=st.floats(1, 3600),
    ),
)
CONFIGS = st.builds(
    cfg.Config,
    algorithm=st.sampled_from(list(map(str, Algorithm))),
    runtime=RUNTIMES,
    places=st.dictionaries(ROLES, PLACES, max_size=3),
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
    accounting=st.builds(cfg.AccountingConfig, source=st.none() | WORDS),
)


@given(CONFIGS)
@settings(max_examples=examples(60), deadline=None)
def test_any_config_written_reads_back_equal(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("c") / "c.toml"
    path.write_text(config_toml(config), encoding="utf-8")
    assert load_config(str(path)) == config


@given(
    steps=st.integers(1, 10**6),
    rate=st.floats(1e-12, 1e3),
    name=st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True),
    isolated=st.booleans(),
    calls=st.lists(st.integers(0, 99), min_size=1, max_size=3),
)
@settings(max_examples=examples(40), deadline=None)
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
    assert (
        load_config("demo", ["name=second", "devices.accelerator=u280"]).devices.accelerator
        == "u280"
    )


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


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_can_be_configured(algorithm):
    assert load_config("demo", [f'algorithm="{algorithm}"']).algorithm_enum is algorithm


def test_there_is_no_other_algorithm():
    assert get_args(cfg.Config.model_fields["algorithm"].annotation) == tuple(map(str, Algorithm))


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


def test_numbers_are_finite_everywhere():
    for model, name, kind in scalars():
        if kind is float:
            for value in (math.inf, -math.inf, math.nan):
                with pytest.raises(ValidationError, match=name):
                    model.model_validate({name: value})


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
@settings(max_examples=examples(150), deadline=None)
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


# ---------------------------------------------------------------- strictness

WRONG = {
    int: ("7", 7.0, True, None),
    float: ("0.5", True, None),
    bool: ("off", "true", 1, 0.0, None),
    str: ("", " ", 3, None),
    Path: ("", " ", "a\x00b", 3),
}


def scalar(annotation):
    """The scalar type of a field, or None."""
    if get_origin(annotation) is Annotated:
        return scalar(get_args(annotation)[0])
    inner = {scalar(a) for a in get_args(annotation) if a is not type(None)}
    if get_origin(annotation) in (Union, UnionType) and len(inner) == 1:
        return inner.pop()
    return annotation if annotation in WRONG else None


def scalars():
    seen = set()
    models_below(cfg.Config, seen)
    for model in sorted(seen, key=lambda m: m.__name__):
        for name, field in model.model_fields.items():
            if kind := scalar(field.annotation):
                yield model, name, kind


def test_every_scalar_is_taken_as_it_is():
    n = 0
    for model, name, kind in scalars():
        optional = model.model_fields[name].default is None
        for wrong in WRONG[kind]:
            if wrong is None and optional:
                continue
            with pytest.raises(ValidationError) as caught:
                model.model_validate({name: wrong})
            assert any(e["loc"] == (name,) for e in caught.value.errors()), (model, name, wrong)
            n += 1
    assert n > 150


def test_a_whole_number_may_stand_for_a_number():
    config = load_config("demo", ["placement.deadline_s=5", "placement.energy_margin=1"])
    assert (config.placement.deadline_s, config.placement.energy_margin) == (5.0, 1.0)


def test_no_whole_number_is_without_a_bound():
    """A mistyped figure is refused here, not hours later by a loop or a library."""
    for model, name, kind in scalars():
        if kind is int:
            with pytest.raises(ValidationError) as caught:
                model.model_validate({name: 10**20})
            assert any(e["loc"] == (name,) for e in caught.value.errors()), (model, name)


# ---------------------------------------------------------------- where the factors come from


@pytest.mark.parametrize(
    ("given_keys", "origin"),
    [
        ({}, "450 g/kWh: "),
        ({"pue": 1.2, "intensity_g_per_kwh": 450}, "450 g/kWh: "),
        ({"intensity_g_per_kwh": 50, "pue": 1.05}, "given in the config"),
        ({"intensity_g_per_kwh": 50}, "given in the config"),
        ({"pue": 1.5}, "given in the config"),
        ({"intensity_g_per_kwh": 50, "source": " my grid "}, "my grid"),
        ({"source": "my grid"}, "my grid"),
    ],
)
def test_the_source_of_the_defaults_speaks_for_no_other_factors(given_keys, origin):
    assert cfg.AccountingConfig(**given_keys).origin.startswith(origin)


def test_text_of_a_config_reads_like_its_file(write):
    text = "seed = 3\n"
    assert cfg.parse_config(text, "t") == load_config(str(write(text)))
    with pytest.raises(ConfigError, match=r"^the ledger:2: seed = -1"):
        cfg.parse_config("\nseed = -1", "the ledger")


def test_an_anchored_config_means_the_same_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"type": "files", "policy": "p", "reward": "~/r", "prompts": "/abs/x.jsonl"}
    config = cfg.validate_config({"task": files, "run_dir": "runs/{name}-{seed}"}).anchored()
    assert config.task.policy == tmp_path / "p"
    assert config.task.reward == Path("~/r").expanduser()
    assert config.task.prompts == Path("/abs/x.jsonl")
    assert config.task.pairs is None
    assert config.resolved_run_dir() == tmp_path / "runs" / "run-42"
    assert config.anchored() == config
