"""Scripts of slime and Miles, against the truth written beside them; what makes one system of the other."""

import json
from pathlib import Path

import pytest

from foreign_scripts import judge, main, read
from headway.errors import InputError
from headway.foreign.found import KEYS
from headway.foreign.readers import read_run, settings_of
from headway.foreign.shell import read_text

SCRIPTS = Path(__file__).parents[2] / "data" / "scripts"
ROWS = [json.loads(line) for line in (SCRIPTS / "truth.jsonl").read_text().splitlines()]


def found(text):
    return settings_of(read_text(text))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["path"])
def test_every_key_is_right(row):
    assert judge(iter([(row, read(SCRIPTS / row["path"], SCRIPTS))])).rows == []


def test_the_truth_covers_every_key():
    assert all(set(row["truth"]) | set(row.get("unknowable", ())) == set(KEYS) for row in ROWS)
    assert len(ROWS) >= 25


def test_the_benchmark_counts_unknown_and_wrong(tmp_path, capsys):
    (tmp_path / "a.sh").write_text(
        "python3 train.py --num-rollout 1 --rollout-batch-size 8 --colocate --tensor-model-parallel-size $TP\n"
    )
    truth = {
        "path": "a.sh",
        "truth": {"rollout_batch": 4, "colocate": True, "tp": 2, "pp": 1},
        "derived": {"pp": None},
        "unknowable": ["nodes"],
    }
    (tmp_path / "truth.jsonl").write_text(json.dumps(truth))
    assert main([str(tmp_path), "--truth", str(tmp_path / "truth.jsonl"), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert {row["key"]: row["is"] for row in score["not_right"]} == {
        "rollout_batch": "wrong",
        "tp": "unknown",
        "nodes": "wrong",
    }
    assert (score["keys"], score["right"]) == (5, 0.4)


TRAIN = "python3 train.py --num-rollout 1 --rollout-batch-size 8 --hf-checkpoint /m/Some-4B "


@pytest.mark.parametrize(
    ("flags", "loaded"),
    [
        ("", False),
        ("--use-kl-loss --kl-loss-coef 0.00", True),
        ("--kl-loss-coef 0.1", False),
        ("--kl-coef 0.0", False),
        ("--kl-coef 0.01", True),
        ("--ref-load /m/Some-4B_dist", False),
    ],
)
def test_a_reference_is_loaded_whatever_the_loss_s_coefficient_is(flags, loaded):
    assert found(TRAIN + flags).settings["reference_loaded"] is loaded


def test_a_reference_that_hangs_on_an_unset_variable_is_unknown():
    assert found(TRAIN + "--kl-coef $KL").unknown["reference_loaded"] == "variable KL is not set in the script"
    assert found(TRAIN + "--kl-coef $KL --use-kl-loss").settings["reference_loaded"] is True


def test_absent_flags_are_null_and_their_defaults_are_derived():
    run = found(TRAIN + "--colocate --actor-num-gpus-per-node 4")
    assert (run.settings["pp"], run.derived["pp"], run.value("pp")) == (None, 1, 1)
    assert (run.settings["rollout_gpus"], run.derived["rollout_gpus"]) == (None, 4)
    assert run.settings["sequence_parallel"] is False
    assert run.settings["update_weight_buffer_bytes"] is None
    assert run.derived["update_weight_buffer_bytes"] == 512 << 20


def test_a_flag_without_its_value_is_said():
    run = found(TRAIN + "--save-interval --prompt-data --eval-interval 5")
    assert run.unknown["save_interval"] == "--save-interval has no value"
    assert run.settings["eval_interval"] == 5
    assert "--prompt-data has no value" in run.notes


def test_a_value_that_is_no_number_is_unknown():
    assert "is no number" in found(TRAIN + "--tensor-model-parallel-size two").unknown["tp"]


@pytest.mark.parametrize(
    ("text", "system", "backend"),
    [
        (TRAIN, "slime", "megatron"),
        ("cd /root/miles\n" + TRAIN, "miles", "megatron"),
        (TRAIN + "--train-backend fsdp", "miles", "fsdp"),
        ("cd /root/slime\n" + TRAIN + "--train-backend fsdp --fsdp-cpu-offload", "slime", "fsdp"),
        (TRAIN + "--lora-rank 8", "miles", "megatron"),
        ("cd /root/slime\n" + TRAIN + "--train-backend fsdp", "slime", "fsdp"),
        (TRAIN + "--wandb-project miles-dev", "miles", "megatron"),
    ],
)
def test_which_system_it_is(text, system, backend):
    run = found(text)
    assert (run.system, run.settings["trainer_backend"]) == (system, backend)


def test_two_runs_that_a_condition_decides_between_are_read_as_far_as_they_agree():
    run = found(f"if [ -d /x ]; then {TRAIN} --kl-coef 1; else {TRAIN} --kl-coef 2; fi")
    assert run.settings["rollout_batch"] == 8
    assert run.unknown["kl_coef"].endswith("1.0 or 2.0")


def test_the_first_of_several_runs_is_read():
    assert found(f"for b in 4 8; do {TRAIN} --global-batch-size $b; done").settings["global_batch"] == 4


def test_a_script_without_a_trainer_says_what_it_starts():
    with pytest.raises(InputError, match=r"it starts convert\.py"):
        found("python3 tools/convert.py --hf-checkpoint x --save y")


def test_places_are_those_of_the_values():
    run = read_run(SCRIPTS / "slime-arrays.sh")
    assert run.places["tp"].line == 39
    assert run.places["num_layers"].file.endswith("models/dense-4b.sh")


MILES = """
MODEL_ARGS_LINE="$(python3 "$(dirname "$0")/../miles/utils/external_utils/model_args_utils.py" "NAME")" || exit 1
read -ra MODEL_ARGS <<< "${MODEL_ARGS_LINE}"
python3 train.py ${MODEL_ARGS[@]} --rollout-batch-size 8 --hf-checkpoint /m/x --colocate --miles-router-timeout 3
"""


def _miles(folder, name):
    (folder / "pyproject.toml").write_text("")
    models = folder / "scripts" / "models"
    models.mkdir(parents=True, exist_ok=True)
    (models / "tiny-1B.py").write_text('def model_args():\n    return "--num-layers 7 " "--hidden-size 96"\n')
    (models / "asks.py").write_text('def model_args():\n    return f"--num-layers {ask()} --hidden-size 96"\n')
    script = folder / "examples" / "run.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(MILES.replace("NAME", name))
    from headway.foreign.readers import read_run

    return read_run(script)


def test_the_arguments_that_a_script_asks_miles_for_are_those_of_the_models_file(tmp_path):
    found = _miles(tmp_path, "tiny-1B")
    assert (found.value("num_layers"), found.value("hidden_size")) == (7, 96)


@pytest.mark.parametrize("name", ["asks", "other-2B", "../../secret"])
def test_arguments_that_the_file_does_not_tell_stay_unknown(tmp_path, name):
    found = _miles(tmp_path, name)
    assert found.value("num_layers") is None
    assert "num_layers" in found.unknown
