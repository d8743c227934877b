"""`ecorl fpga estimate`, run as a user would, in this process."""

from __future__ import annotations

import json
import sys

import pytest

from ecorl import cli

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
REWARD = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
THIRTEEN = {**REWARD, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
            "num_attention_heads": 40, "num_key_value_heads": 40}  # fmt: skip


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process: exit code and both streams."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", "fpga", "estimate", *map(str, args)])
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


@pytest.fixture
def models(tmp_path):
    """Checkpoint folders that hold a config.json and nothing else."""
    for name, data in (("lm", LLAMA), ("rm", REWARD), ("large", THIRTEEN)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(data))
    return tmp_path


def the_line(outcome):
    """The one line on standard error of a user's mistake."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    return line


def rows_of(out, head):
    """The table that begins with a heading, its rows by their first column."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split("  ")[0] == head)
    table = {}
    for line in lines[start + 1 :]:
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if len(cells) < 2:
            break
        table[cells[0]] = cells[1:]
    return table


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_model_wider_than_the_kernels_is_refused(command, tmp_path, in_folder):
    file = tmp_path / "config.json" if in_folder else tmp_path / "wide.json"
    file.write_text(json.dumps({**LLAMA, "hidden_size": 16_416, "head_dim": 128}))
    line = the_line(command("--model", tmp_path if in_folder else file, "--tokens", 8))
    assert f"{file}: hidden_size = 16416" in line
    assert "16384" in line


def test_a_7b_reward_model_at_512_tokens(command, models, snapshot):
    path = models / "out" / "estimate.json"
    code, out, err = command("--model", models / "rm", "--tokens", 512, "--json", path)
    assert (code, err) == (0, "")
    snapshot(out)
    kernels = rows_of(out, "kernel")
    assert list(kernels)[:4] == ["gemm_int8", "vector_ops", "kv_cache_router", "mha_int8"]
    assert "link, 65,664 bytes" in kernels
    shares = [float(cells[-1].removesuffix(" %")) for cells in kernels.values()]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    sweep = rows_of(out, "II")
    assert list(sweep) == ["1", "2", "4"]
    data = json.loads(path.read_text())
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    u55c, v80 = data["estimates"]
    assert (u55c["device"], v80["device"], data["provenance"]) == ("u55c", "v80", "modelled")
    run = u55c["runs"][0]
    assert run["tokens_per_j"] == pytest.approx(512 / run["energy_j"])
    assert run["energy_j"] == pytest.approx(73 * run["time_s"])
    assert run["time_s"] == pytest.approx(
        sum(k["time_s"] for k in run["kernels"]) + run["launch_s"] + run["link_s"]
    )
    assert v80["runs"] == []
    assert sum(data["placements"][0]["used_bytes"]) < 32 << 29


def test_reward_model_and_reference_together(command, models, snapshot):
    code, out, _ = command("--model", models / "rm", "--tokens", 1024, "--rows", 4,
                           "--reference", models / "lm", "--device", "u55c", "--ii", 2)  # fmt: skip
    assert code == 0
    snapshot("\n".join(out.splitlines()[:2]))
    assert out.count("II = 2") == 2
    assert "score_aggregator" in out
    placement = rows_of(out, "what")
    assert {"rm (reward): weights", "lm (reference): weights", "all"} <= set(placement)
    assert "v80" not in out


def test_models_that_do_not_fit_are_refused_in_one_line(command, models, tmp_path, snapshot):
    options = ("--reference", models / "lm", "--json", tmp_path / "out.json")
    snapshot(the_line(command("--model", models / "large", "--tokens", 512, *options)))
    assert not (tmp_path / "out.json").exists()
    code, _, _ = command("--model", models / "large", "--tokens", 512, "--device", "v80")
    assert code == 0


def test_a_config_file_of_any_name_and_another_stage(command, models):
    file = models / "llama.json"
    file.write_text(json.dumps(LLAMA))
    code, out, _ = command("--model", file, "--tokens", 64, "--device", "u55c", "--ii", 1)
    assert code == 0
    assert out.startswith("llama as reference model")
    code, out, _ = command("--model", models / "lm" / "config.json", "--tokens", 64,
                           "--stage", "reward", "--device", "u55c")  # fmt: skip
    assert code == 0
    assert out.startswith("lm as reward model")


def test_a_profile_without_channels_says_so(command, models, tmp_path, snapshot):
    card = tmp_path / "card.toml"
    card.write_text('name = "mine"\ntitle = "Mine"\nkind = "fpga"\n')
    code, out, _ = command("--model", models / "rm", "--tokens", 8, "--device", card)
    assert code == 0
    snapshot(out)


def test_options_with_mistakes(command, models, snapshot):
    (models / "broken.json").write_text("{")
    before, lines = sorted(models.rglob("*")), []
    for options in (
        ("--model", models / "none"),
        ("--model", models),
        ("--tokens", 0),
        ("--tokens", 5000),
        ("--rows", 9),
        ("--rows", 0),
        ("--stage", "critic"),
        ("--ii", 3),
        ("--device", "u99"),
        ("--device", "h100_sxm"),
        ("--json", models),
        ("--model", models / "lm", "--reference", models / "lm"),
        ("--model", models / "broken.json"),
    ):
        defaults = [] if "--model" in options else ["--model", models / "rm"]
        tokens = [] if "--tokens" in options else ["--tokens", 8]
        lines.append(the_line(command(*defaults, *tokens, *options)))
        assert sorted(models.rglob("*")) == before
    snapshot("\n".join(lines))


def test_the_group_names_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ecorl", "fpga"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "estimate" in capsys.readouterr().out
