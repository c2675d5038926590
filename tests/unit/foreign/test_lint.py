"""Every rule sees its own example and not its near miss, and what it says of real launches is right."""

import subprocess
import sys
from pathlib import Path

import pytest

from headway.foreign import slime
from headway.foreign.found import Found
from headway.foreign.lint import RULES, LintNote, lint
from headway.foreign.lint.__main__ import render
from headway.foreign.lint.unknown_flag import flags_of
from headway.foreign.openrlhf import read as openrlhf
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_script, read_text
from headway.foreign.verl import read as verl

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "data" / "scripts"
RUN = "python3 train.py --rollout-batch-size 8 --n-samples-per-prompt 8 "
BY_NAME = {rule.name: rule for rule in RULES}


def notes(text: str, reader=settings_of, **more) -> list[LintNote]:
    script = read_text(text)
    return list(lint(reader(script), script, **more))


def names(text: str, reader=settings_of) -> set[str]:
    return {note.rule for note in notes(text, reader)}


def one(text: str, rule: str, reader=settings_of, **more) -> LintNote:
    (found,) = [note for note in notes(text, reader, **more) if note.rule == rule]
    return found


class TestEveryRule:
    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_sees_its_example(self, rule):
        found = [note for note in notes(rule.example) if note.rule == rule.name]
        assert found
        assert all(note.text and note.why and note.instead and note.line for note in found)

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    def test_does_not_see_its_near_miss(self, rule):
        assert rule.name not in names(rule.near_miss)

    def test_is_named_for_its_file(self):
        folder = ROOT / "src" / "headway" / "foreign" / "lint"
        files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__", "rule", "table"}
        assert {rule.name.replace("-", "_") for rule in RULES} == files


def test_the_page_is_what_the_rules_say():
    assert (ROOT / "docs" / "lint.md").read_text() == render()


def test_the_page_is_made_by_the_module():
    made = subprocess.run([sys.executable, "-m", "headway.foreign.lint"], capture_output=True, text=True, check=True)
    assert made.stdout == render()


def test_errors_come_first():
    order = [
        note.severity for note in notes(f"ray stop\n{RUN} --prompt-data --global-batch-size 48 --eval-interval 5")
    ]
    assert order == sorted(order, key=("error", "warning", "note").index)
    assert {"error", "warning"} <= set(order)


class TestStep75:
    """The launch of an asynchronous 30B-A3B run on eight B200 that ended at step 75."""

    @pytest.fixture
    def found(self) -> list[LintNote]:
        script = read_script(SCRIPTS / "slime-step-75.sh")
        return list(lint(settings_of(script), script, at_step=75))

    def test_what_it_sees(self, found):
        assert {note.rule for note in found} == {
            "broken-json", "empty-value", "cap-below-sample", "reference-at-zero", "no-load", "save-path",
            "kills-others", "undefined-variable", "eval-above-cap", "intervals",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("rule", "line"),
        [
            ("broken-json", 138),
            ("no-load", 35),
            ("save-path", 35),
            ("reference-at-zero", 83),
            ("cap-below-sample", 78),
        ],
    )
    def test_where(self, found, rule, line):
        assert [note.line for note in found if note.rule == rule] == [line]

    def test_what_was_due(self, found):
        (note,) = [note for note in found if note.rule == "intervals"]
        assert "save (every 50) was not due, the last at 50" in note.text
        assert "evaluation (every 5) was due" in note.text
        assert "25 rollouts are lost" in note.text
        assert "from 0" in note.why

    def test_what_no_flag_bounds(self, found):
        (note,) = [note for note in found if note.rule == "cap-below-sample"]
        assert "32,768 tokens and more" in note.text
        assert "no flag bounds the prompt" in note.text
        assert "tools and turns" in note.text

    def test_both_empty_values(self, found):
        assert [note.line for note in found if note.rule == "empty-value"] == [40, 58]


class TestIntervals:
    @pytest.mark.parametrize(
        ("step", "said"),
        [
            (100, "what there is to resume from is the save of 100 if it was complete, else 50"),
            (49, "save (every 50) was not due, none before it"),
            (3, "there is nothing to resume from, 3 rollouts are lost"),
        ],
    )
    def test_steps(self, step, said):
        text = f"{RUN} --save /c --load /c --save-interval 50 --eval-interval 5"
        assert said in one(text, "intervals", at_step=step).text

    def test_a_step_of_verl_counts_from_one(self):
        text = "python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.save_freq=20 trainer.test_freq=5"
        assert "from 1" in one(text, "intervals", verl, at_step=40).why

    def test_no_save_is_a_note_only_where_no_word_may_hold_it(self):
        assert "intervals" in names(f"{RUN} --eval-interval 5")
        assert "intervals" not in names("source missing.sh\n" + RUN + "${OTHER_ARGS[@]}")


class TestReference:
    def test_verl_needs_no_reward_penalty(self):
        text = (
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.use_kl_loss=True "
            "actor_rollout_ref.actor.kl_loss_coef=0 algorithm.use_kl_in_reward="
        )
        assert "reference-at-zero" in names(text + "False", verl)
        assert "reference-at-zero" not in names(text + "True", verl)

    def test_a_penalty_in_the_reward_uses_it(self):
        assert "reference-at-zero" not in names(f"{RUN} --use-kl-loss --kl-loss-coef 0 --kl-coef 0.01")


class TestCap:
    def test_verl_refuses_such_a_sample(self):
        text = (
            "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=8192 "
            "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=9000"
        )
        note = one(text, "cap-below-sample", verl)
        assert (note.severity, "9,216 tokens are" in note.text) == ("error", True)

    @pytest.mark.parametrize(("prompt", "seen"), [(1024, False), (1025, True)])
    def test_prompt_and_answer_count_together(self, prompt, seen):
        text = f"{RUN} --use-dynamic-batch-size --max-tokens-per-gpu 9216 --rollout-max-response-len 8192 "
        assert ("cap-below-sample" in names(f"{text} --rollout-max-prompt-len {prompt}")) is seen

    def test_a_bound_of_the_whole_sample_is_enough(self):
        text = f"{RUN} --use-dynamic-batch-size --max-tokens-per-gpu 9216 --rollout-max-response-len 32768 "
        assert "cap-below-sample" not in names(f"{text} --rollout-max-context-len 9216")


class TestKillers:
    @pytest.mark.parametrize(
        "command",
        [
            "pkill -9 python", "sudo pkill -9 -f python3", "killall -9 sglang", "ray stop", "pkill -9 ray",
            'bash -c "sleep 1; pkill -9 python"', "for p in python ray; do pkill -9 $p; done",
            "ssh node2 'pkill -9 sglang'", "pkill -u $USER python",
        ],
    )  # fmt: skip
    def test_seen(self, command):
        assert "kills-others" in names(f"{command}\n{RUN}")

    @pytest.mark.parametrize(
        "command",
        [
            "# pkill -9 python", "echo pkill -9 python", "kill -9 $SERVER_PID", "pkill -f /srv/me/reward_server.py",
            "ray start --head", "ray status", "cat <<'EOF'\npkill -9 python\nEOF",
        ],
    )  # fmt: skip
    def test_not_seen(self, command):
        assert "kills-others" not in names(f"{command}\n{RUN}")


class TestRayMonitor:
    @pytest.mark.parametrize(
        "before",
        [
            "export RAY_memory_usage_threshold=0.99\n",
            "RAY_memory_monitor_refresh_ms=0 ray start --head\n",
            "env RAY_memory_monitor_refresh_ms=0 ray start --head\n",
            "export RAY_memory_monitor_refresh_ms=${REFRESH:-0}\n",
            "ray start --head --system-config='{\"memory_usage_threshold\": 0.98}'\n",
        ],
    )
    def test_seen(self, before):
        assert "ray-monitor" in names(before + RUN)

    def test_a_variable_that_no_command_sees(self):
        assert "ray-monitor" not in names("RAY_memory_monitor_refresh_ms=0\n" + RUN)


class TestExpandableSegments:
    def test_in_ray_s_runtime_environment(self):
        text = (
            'ray job submit --runtime-env-json=\'{"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": '
            f'"max_split_size_mb:64,expandable_segments:True"}}}}\' -- {RUN} --colocate'
        )
        assert one(text, "expandable-segments").severity == "error"

    def test_vllm_that_sleeps(self):
        run = (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python3 -m openrlhf.cli.train_ppo_ray "
            "--vllm_num_engines 2 --colocate_all_models "
        )
        assert "expandable-segments" in names(run + "--vllm_enable_sleep", openrlhf)
        assert "expandable-segments" not in names(run, openrlhf)

    def test_switched_off(self):
        text = f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\n{RUN} --colocate"
        assert "expandable-segments" not in names(text)


class TestJson:
    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ("'{\"a\": 1,}'", "comma"),
            ("\"{'a': 1}\"", "single ones"),
            ('{"a": 1}', "the shell takes them away"),
            ("'{\"a\": 1'", "before all of its brackets"),
        ],
    )
    def test_why(self, value, why):
        assert why in one(f"{RUN} --chat-template-kwargs {value}", "broken-json").text

    @pytest.mark.parametrize(
        "value", ['\'{"a": [1, {"b": null}]}\'', "'{}'", "$KWARGS", '"{\\"a\\": \\"$X\\"}"', "a.json"]
    )
    def test_right(self, value):
        assert "broken-json" not in names(f"{RUN} --chat-template-kwargs {value}")

    def test_hydra_s_braces(self):
        text = "python3 -m verl.trainer.main_ppo data.train_batch_size=64 +data.extra={a: 1}"
        assert "broken-json" not in names(text, verl)


class TestVariables:
    def test_with_set_u_the_script_ends(self):
        text = f"set -euo pipefail\n{RUN} --custom-rm-path $REWARDS/reward.py"
        assert one(text, "undefined-variable").severity == "error"

    def test_what_a_login_sets_is_a_note_and_what_a_scheduler_sets_is_nothing(self):
        assert one(f"{RUN} --custom-rm-path $CUDA_HOME/r.py", "undefined-variable").severity == "note"
        text = f"{RUN} --custom-rm-path $SLURM_SUBMIT_DIR/r.py"
        assert not [note for note in notes(text) if note.rule == "undefined-variable"]

    def test_a_variable_is_told_once(self):
        text = f"{RUN} --save /c/$OUT --load /c/$OUT --custom-rm-path $OUT/r.py --prompt-data $DATA"
        found = [(note.rule, "OUT" in note.text) for note in notes(text)]
        assert found.count(("save-path", True)) == 1
        assert "undefined-variable" not in {rule for rule, _ in found}

    @pytest.mark.parametrize("part", ["$(date +%F)", "$RANDOM", "$$", "$(uuidgen)", "${SLURM_JOB_ID}"])
    def test_paths_that_change(self, part):
        assert "of its own" in one(f"{RUN} --load /c --save /c/{part}", "save-path").text


class TestFlags:
    @pytest.mark.parametrize(
        ("flag", "meant"),
        [
            ("max_tokens_per_gpu", "max-tokens-per-gpu"),
            ("rollout-batch-szie", "rollout-batch-size"),
            ("sglang-mem-fraction-statics", "sglang-mem-fraction-static"),
        ],
    )
    def test_slips(self, flag, meant):
        assert one(f"{RUN} --{flag} 4", "unknown-flag").instead == f"write --{meant}"

    def test_keys_of_hydra(self):
        text = "python3 -m verl.trainer.main_ppo data.train_batch_sizes=64 trainer.nnodes=1"
        assert "data.train_batch_size" in one(text, "unknown-flag", verl).instead

    def test_no_flag_that_a_reader_knows_is_a_slip(self):
        for rule in slime.RULES:
            assert set(rule.flags) <= flags_of("slime")

    def test_twice_names_both_places(self):
        text = f"ARGS=(--lr 1e-6)\n{RUN} \\\n --lr 2e-6 ${{ARGS[@]}}"
        assert one(text, "flag-twice").text == "--lr is given 2 times: 2e-6 (line 3), then 1e-6 (line 1); 1e-6 holds"


class TestBatches:
    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            ("--num-steps-per-rollout 3", "no multiple of --num-steps-per-rollout 3"),
            ("--num-steps-per-rollout 2 --global-batch-size 64", "are 32 a step"),
            ("--tensor-model-parallel-size 3", "3 x 1 x 1 = 3"),
            ("--actor-num-gpus-per-node 6 --global-batch-size 64", "6 data parallel ranks"),
            ("--micro-batch-size 3 --global-batch-size 64", "8 data parallel ranks x --micro-batch-size 3"),
            ("--num-experts 128 --expert-model-parallel-size 3", "128 experts"),
            ("--rollout-num-gpus 6 --rollout-num-gpus-per-engine 4", "6 devices for rollouts"),
        ],
    )
    def test_said(self, flags, said):
        found = [note.text for note in notes(RUN + flags) if note.rule == "batch-arithmetic"]
        assert any(said in text for text in found)

    def test_dynamic_batches_are_dealt(self):
        text = f"{RUN} --actor-num-gpus-per-node 6 --global-batch-size 64 --use-dynamic-batch-size"
        assert one(text, "batch-arithmetic").severity == "warning"

    def test_unknown_values_are_not_judged(self):
        assert "batch-arithmetic" not in names(f"{RUN} --global-batch-size $(nproc) --tensor-model-parallel-size $TP")


def test_the_planner_s_refusal_is_told_in_the_script_s_flag():
    text = f"{RUN} --sglang-mem-fraction-static 0.1"
    note = one(text, "engine-start", refusals=("engine.memory_fraction = 0.1: leaves no KV pool",))
    assert note.text == "--sglang-mem-fraction-static = 0.1: leaves no KV pool"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_of_every_style_are_looked_at(path):
    script = read_script(path)
    found = settings_of(script)
    assert isinstance(found, Found)
    for note in lint(found, script, at_step=7):
        assert note.rule in BY_NAME
        assert note.text
