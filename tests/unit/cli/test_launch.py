"""`headway plan` of launch scripts, commands and logs: what is read, under which limits, and copies that fit."""

import json
import os
import re
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headway.cli.app import app
from headway.cli.inputs import is_launch, read_case
from headway.cli.launch import read_launch
from headway.errors import InputError
from headway.foreign.found import KEYS

DATA = Path(__file__).parents[2] / "data"
STEP_75 = str(DATA / "scripts" / "slime-step-75.sh")
B200 = ("--machine", "b200x8", "--set", "host.bytes=1600e9")
COMMAND = (
    "python3 train.py --train-backend fsdp --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 1 "
    "--hf-checkpoint /models/Qwen3-4B --ref-load /models/Qwen3-4B --rollout-batch-size 8 --n-samples-per-prompt 8 "
    "--rollout-max-response-len 256 --use-kl-loss --kl-loss-coef 0 --gradient-checkpointing "
    "--use-dynamic-batch-size --max-tokens-per-gpu 9216 --sglang-mem-fraction-static 0.4"
)


def call(*words: str, width: int = 100) -> Result:
    return CliRunner().invoke(app, ["plan", *words], env={"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "miles-run.sh"
    text = COMMAND.replace("0.4", "${FRACTION:-0.4}").replace(" --", " \\\n   --")
    path.write_text(f"#!/bin/bash\n# grüße\n{text}\n")
    path.chmod(0o550)
    return path


PPO = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-4B actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4 trainer.n_gpus_per_node=8 trainer.nnodes=1"
)


class TestModelsBesideTheActor:
    def test_a_critic_of_unknown_size_is_in_the_headline_and_in_the_json(self) -> None:
        words = ["--machine", "8xh100-80", "--", *PPO.split(), "critic.model.path=/m/our-critic"]
        shown = call(*words)
        assert shown.exit_code == 4
        text = " ".join(shown.stdout.split())
        assert (
            "Cannot tell: what is planned is not over a limit, but this holds memory too: critic (critic.model.path "
            "/m/our-critic): its sizes are not known; --set critic.model=NAME."
        ) in text
        assert "Fits: even" not in text
        found = json.loads(call("--json", *words).stdout)
        assert found["verdict"] == "cannot tell"
        assert found["unplanned"] == [
            "critic (critic.model.path /m/our-critic): its sizes are not known; --set critic.model=NAME"
        ]
        told = call("--set", "critic.model=qwen3-4B", *words)
        assert (told.exit_code, "Fits: needs at most" in told.stdout) == (0, True)

    def test_a_critic_of_known_size_is_in_the_plan(self) -> None:
        found = json.loads(call("--json", "--machine", "8xh100-80", "--", *PPO.split()).stdout)
        assert (found["verdict"], found["unplanned"]) == ("fits", [])
        assert {line["role"] for line in found["lines"]} >= {"trainer", "critic", "engine"}

    def test_devices_of_their_own_count(self) -> None:
        command = (
            "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-4B --reward_pretrain Qwen/Qwen3-4B "
            "--actor_num_gpus_per_node 4 --critic_num_gpus_per_node 4 --ref_num_gpus_per_node 2 "
            "--reward_num_gpus_per_node 2 --vllm_num_engines 4 --zero_stage 3 --micro_train_batch_size 1"
        )
        words = command.split()
        shown = call("--machine", "8xh100-80", "--", *words)
        assert isinstance(shown.exception, InputError)
        assert "critic 1 x 4, reward 1 x 2, reference 1 x 2: 8xh100-80 has 8 devices" in " ".join(
            str(shown.exception).split()
        )
        assert call("--machine", "2x8xh100-80", "--", *words).exit_code in (0, 3)


class TestStep75:
    def test_the_plan(self) -> None:
        shown = call(STEP_75, "--model", "qwen3-30B-A3B", *B200, "--at-step", "75", "--lines")
        assert shown.exit_code == 0, shown.output
        text = " ".join(shown.stdout.split())
        for said in (
            "node[0].device[0]", "node[0].device[4]", "1490.12 GiB", "In the launch", "the last at 50",
            "a leak is no setting", "was not found in the script's tree",
        ):  # fmt: skip
            assert said in text

    def test_as_json(self) -> None:
        found = json.loads(call(STEP_75, "--model", "qwen3-30B-A3B", *B200, "--json").stdout)
        assert found["settings"]["tp"] == 4
        assert "num_layers" in found["unknown_settings"]
        assert {note["rule"] for note in found["lint"]} >= {"broken-json", "empty-value", "no-load"}
        assert any("qwen3-30B-A3B-thinking.sh" in text for text in found["unread"])
        assert isinstance(found["unknown"], list)

    def test_without_a_model_it_says_what_is_missing(self) -> None:
        with pytest.raises(InputError, match="pass --model NAME"):
            read_case([str(DATA / "scripts" / "slime-missing-model.sh")], None, "8xb200", ())

    def test_in_its_pod(self) -> None:
        pod = str(DATA / "pods" / "rayjob.yaml")
        found = json.loads(
            call(STEP_75, "--model", "qwen3-30B-A3B", "--machine", "8xb200", "--pod", pod, "--json").stdout
        )
        pools = {pool["pool"]: pool for pool in found["pools"]}
        assert [limit["name"] for limit in pools["node[0].host"]["limits"]] == ["Ray 0.95", "pod"]
        assert any(text.startswith("pod: ") for text in found["unknown"])


class TestSettings:
    def test_every_key_is_told_or_unknown(self) -> None:
        found = json.loads(call(STEP_75, "--settings", "--json").stdout)
        assert set(found["settings"]) | set(found["unknown"]) == set(KEYS)
        assert not set(found["settings"]) & set(found["unknown"])
        assert (found["settings"]["colocate"], found["settings"]["lora_rank"]) == (False, None)
        assert found["places"]["tp"]["line"] == 65

    def test_on_a_terminal(self) -> None:
        text = call(STEP_75, "--settings").stdout
        assert re.search(r"max_tokens_per_gpu +20480 .*line 78", text)
        assert "Unknown" in text
        assert "a comma stands before a closing bracket" in " ".join(text.split())

    def test_needs_a_launch(self) -> None:
        with pytest.raises(InputError, match="leave --settings out"):
            CliRunner().invoke(app, ["plan", "qwen3-4B", "--settings"], catch_exceptions=False)


class TestWhatIsALaunch:
    def test_a_command(self) -> None:
        found = json.loads(call("--machine", "gb10", "--json", "--", *COMMAND.split()).stdout)
        assert found["settings"]["max_tokens_per_gpu"] == 9216
        assert found["verdict"] == "does not fit"

    def test_the_command_and_the_script_plan_alike(self, script: Path) -> None:
        ledgers = [
            json.loads(call("--machine", "gb10", "--json", "--", *words).stdout)["lines"]
            for words in (COMMAND.split(), [str(script)])
        ]
        assert ledgers[0] == ledgers[1]

    def test_a_script_without_an_ending(self, tmp_path: Path) -> None:
        path = tmp_path / "launch"
        path.write_text("#!/usr/bin/env bash\npython3 train.py --rollout-batch-size 8\n")
        assert is_launch([str(path)])
        assert read_launch([str(path)]).found.settings["rollout_batch"] == 8

    def test_a_runspec_without_an_ending_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        path.write_text("[model]\npath = 'x'\n")
        assert not is_launch([str(path)])

    def test_a_log_without_arguments(self, tmp_path: Path) -> None:
        for name in ("end.log", "end.txt"):
            path = tmp_path / name
            path.write_text("step 75: killed\n")
            with pytest.raises(InputError, match="prints no arguments of a run"):
                read_launch([str(path)])

    def test_a_log_with_arguments(self) -> None:
        logs = sorted((DATA / "scripts_other" / "logs").glob("*.log"))
        assert logs
        for path in logs:
            assert read_launch([str(path)]).found.settings["system"]

    @pytest.mark.parametrize("starter", [(), ("bash", "-x"), ("env", "A=1", "srun", "-n", "1", "bash")])
    def test_a_script_in_a_command_is_read_with_its_arguments(self, tmp_path: Path, starter: tuple[str, ...]) -> None:
        path = tmp_path / "m.sh"
        path.write_text(f'#!/bin/bash\n{COMMAND} --lr $1 "${{@:2}}"\n')
        found = read_launch([*starter, str(path), "1e-6", "--rollout-batch-size", "16"]).found
        assert found.settings["rollout_batch"] == 16
        assert found.flags["lr"] == ("1e-6",)
        assert found.places["rollout_batch"].file == "its arguments" or found.places["rollout_batch"].line == 1

    def test_a_command_that_is_a_script_and_no_more_is_that_script(self, script: Path) -> None:
        launch = read_launch(["sbatch", str(script)])
        assert (launch.path, launch.found) == (script, read_launch([str(script)]).found)

    def test_headway_s_options_behind_the_command_are_named(self) -> None:
        said = "--machine was read as the command's own: headway's options stand before --"
        words = [*COMMAND.split(), "--machine", "8xh100-80"]
        found = json.loads(call("--machine", "gb10", "--json", "--", *words).stdout)
        assert any(text.startswith(said) for text in found["unknown"])
        with pytest.raises(InputError, match=said) as error:
            read_case(words, None, "cpu-64gib", ())
        assert "--trainer" not in str(error.value)

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "d.sh").mkdir()
        os.mkfifo(tmp_path / "p.log")
        for name, said in (("d.sh", "is a folder"), ("p.log", "is no plain file"), ("none.sh", "no such file")):
            with pytest.raises(InputError, match=said):
                read_launch([str(tmp_path / name)])
            with pytest.raises(InputError, match=said):
                read_launch(["bash", str(tmp_path / name)])

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("--actor-num-nodes 0", "^--actor-num-nodes 0: must be at least 1"),
            (
                "--actor-num-nodes 2",
                "^--actor-num-nodes 2, --actor-num-gpus-per-node 1: h100-80 has 1 device; .*2x1xh",
            ),
        ],
    )
    def test_bad_values_in_the_script_s_own_flags(self, text: str, said: str) -> None:
        with pytest.raises(InputError, match=said):
            read_case([*COMMAND.split(), *text.split()], None, "h100-80", ())

    def test_a_command_s_yaml_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "grpo.yaml").write_text("model_name_or_path: Qwen/Qwen3-0.6B\nnum_generations: 6\n")
        found = read_launch(["trl", "grpo", "--config", "grpo.yaml"]).found
        assert found.settings["samples_per_prompt"] == 6

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((STEP_75, "--trainer", "trl"), "leave --trainer out"),
            (("qwen3-4B", "--model", "qwen3-8B"), "only a launch script or command has one"),
            ((STEP_75, "--model", "qwen3-31B"), "nearest are"),
            ((STEP_75, "--model", "qwen3-4B", "--machine", "4xb200"), "4xb200 has 4 devices"),
            ((STEP_75, "--model", "qwen3-4B", "--machine", "8xb200", "--pod", "none.yaml"), "cannot be read"),
        ],
    )
    def test_what_contradicts(self, words: tuple[str, ...], said: str) -> None:
        with pytest.raises(InputError, match=said):
            CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)


class TestPatch:
    """--patch writes a copy that fits when it is read and planned again."""

    def test_the_copy_fits(self, script: Path, tmp_path: Path) -> None:
        before, out = script.read_bytes(), tmp_path / "out.sh"
        done = call(str(script), "--machine", "gb10", "--patch", str(out))
        assert done.exit_code == 3
        assert f"+++ {out}" in done.stderr
        assert script.read_bytes() == before
        assert call(str(out), "--machine", "gb10").exit_code == 0
        assert out.read_text().startswith("#!/bin/bash\n# grüße\npython3 train.py \\\n")
        assert stat.S_IMODE(os.stat(out).st_mode) == 0o750

    def test_only_what_the_remedy_names_changes(self, script: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.sh"
        done = call(str(script), "--machine", "gb10", "--json", "--patch", str(out))
        found = json.loads(done.stdout)
        lines, new = script.read_text().splitlines(), out.read_text().splitlines()
        apart = [line for line in new if line not in lines]
        first = next(remedy for remedy in found["remedies"] if f"{out}: {remedy['text']}, so that" in done.stderr)
        assert first["cost"] == "free"
        assert apart
        assert all(any(word in first["text"] for word in line.split() if word.startswith("--")) for line in apart)

    def test_never_over_a_file(self, script: Path) -> None:
        with pytest.raises(InputError, match="is there already"):
            CliRunner().invoke(
                app, ["plan", str(script), "--machine", "gb10", "--patch", str(script)], catch_exceptions=False
            )

    def test_a_run_that_fits_needs_none(self, tmp_path: Path) -> None:
        out = tmp_path / "out.sh"
        done = call(STEP_75, "--model", "qwen3-30B-A3B", *B200, "--patch", str(out))
        assert "the run fits as it is" in done.stderr
        assert not out.exists()

    def test_line_ends_stay(self, script: Path, tmp_path: Path) -> None:
        script.chmod(0o700)
        script.write_bytes(script.read_bytes().replace(b" \\\n  ", b"").replace(b"\n", b"\r\n"))
        out = tmp_path / "out.sh"
        assert call(str(script), "--machine", "gb10", "--patch", str(out)).exit_code == 3
        assert out.read_bytes().count(b"\r\n") == out.read_bytes().count(b"\n") == 3

    def test_bytes_that_are_no_text_are_left_alone(self, script: Path, tmp_path: Path) -> None:
        script.chmod(0o700)
        script.write_bytes(script.read_bytes() + b"# \xff\n")
        with pytest.raises(InputError, match="not all UTF-8"):
            CliRunner().invoke(
                app,
                ["plan", str(script), "--machine", "gb10", "--patch", str(tmp_path / "out.sh")],
                catch_exceptions=False,
            )

    def test_a_command_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="only a script can be copied"):
            CliRunner().invoke(
                app,
                ["plan", "--machine", "gb10", "--patch", str(tmp_path / "o.sh"), "--", *COMMAND.split()],
                catch_exceptions=False,
            )

    def test_a_script_that_starts_another_has_nothing_to_change(self, script: Path, tmp_path: Path) -> None:
        outer = tmp_path / "outer.sh"
        outer.write_text(f"bash {script.name}\n")
        assert read_launch([str(outer)]).found.settings == read_launch([str(script)]).found.settings
        with pytest.raises(InputError, match=r"starts the trainer itself, and .*outer\.sh is none"):
            CliRunner().invoke(
                app,
                ["plan", "--machine", "gb10", "--patch", str(tmp_path / "o.sh"), str(outer)],
                catch_exceptions=False,
            )

    def test_a_value_that_cannot_be_edited_is_told(self, tmp_path: Path) -> None:
        path, out = tmp_path / "run.sh", tmp_path / "out.sh"
        path.write_text(f"bash -c '{COMMAND}'\n")
        with pytest.raises(InputError, match="no change can be written into the script"):
            CliRunner().invoke(
                app, ["plan", str(path), "--machine", "gb10", "--patch", str(out)], catch_exceptions=False
            )
        assert not out.exists()


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.sh"
    path.write_text(f"touch MARK\nX=$(touch MARK2)\ntrap 'touch MARK3' EXIT\n{COMMAND}\n")
    assert call(str(path), "--machine", "gb10", "--patch", str(tmp_path / "out.sh")).exit_code == 3
    assert not list(tmp_path.glob("MARK*"))


def test_bytes_in_scientific_notation() -> None:
    found = read_case([*COMMAND.split()], None, "h200", ("host.bytes=1.6e12",))
    assert found.machine.pool("node[0].host").total_bytes == 1_600_000_000_000
