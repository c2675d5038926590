"""Copies of scripts with flags changed where they are set: what is edited, that nothing else is, what is refused."""

from pathlib import Path

import pytest

from headway.errors import InputError
from headway.foreign.found import Found
from headway.foreign.patch import Edit, edits_of, patch
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text

SCRIPTS = Path(__file__).parents[2] / "data" / "scripts"
RUN = "python3 train.py --rollout-batch-size 8 --num-rollout 4 "
CAP = Edit("max-tokens-per-gpu", "4096")


def patched(text: str, *edits: Edit) -> str:
    return patch("run.sh", text, edits).text


def changed(text: str, *edits: Edit) -> list[tuple[str, str]]:
    """The lines that differ, before and after; the number of lines stays."""
    before, after = text.split("\n"), patched(text, *edits).split("\n")
    assert len(before) == len(after)
    return [(old, new) for old, new in zip(before, after, strict=True) if old != new]


class TestWhereTheValueIs:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 4096"),
            ("--max-tokens-per-gpu=9216", "--max-tokens-per-gpu=4096"),
            ('--max-tokens-per-gpu "9216"', '--max-tokens-per-gpu "4096"'),
            ("--max-tokens-per-gpu '9216'  # tokens", "--max-tokens-per-gpu '4096'  # tokens"),
            ("--max-tokens-per-gpu ${CAP:-9216}", "--max-tokens-per-gpu ${CAP:-4096}"),
            ("--max-tokens-per-gpu ${CAP:-${OTHER:-9216}}", "--max-tokens-per-gpu ${CAP:-${OTHER:-4096}}"),
            ("--max-tokens-per-gpu $((4*2304))", "--max-tokens-per-gpu 4096"),
            ("--max-tokens-per-gpu 1 --max-tokens-per-gpu 2", "--max-tokens-per-gpu 1 --max-tokens-per-gpu 4096"),
        ],
    )
    def test_in_an_array(self, before, after):
        text = "ARGS=(\n   --use-dynamic-batch-size\n   {}\n)\n" + RUN + "${{ARGS[@]}}\n"
        assert patched(text.format(before), CAP) == text.format(after)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("CAP=9216", "CAP=4096"), ("CAP=${CAP:-9216}", "CAP=${CAP:-4096}"),
            ('export CAP="9216"', 'export CAP="4096"'),
            ("BASE=9216\nCAP=$BASE", "BASE=4096\nCAP=$BASE"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("use", ["$CAP", "${CAP}", '"${CAP}"'])
    def test_at_the_variable(self, before, after, use):
        text = "{}\n" + RUN + f"--max-tokens-per-gpu {use}"
        assert patched(text.replace("{}", before), CAP) == text.replace("{}", after)

    def test_a_variable_that_something_else_uses_stays(self):
        text = f"N=4\nray start --num-gpus $N\n{RUN} --actor-num-gpus-per-node $N"
        assert changed(text, Edit("actor-num-gpus-per-node", "2")) == [
            (f"{RUN} --actor-num-gpus-per-node $N", f"{RUN} --actor-num-gpus-per-node 2")
        ]

    def test_in_a_text_of_several_flags(self):
        text = f'MORE="--lr 1 --max-tokens-per-gpu 9216"\n{RUN} $MORE'
        assert changed(text, CAP) == [
            ('MORE="--lr 1 --max-tokens-per-gpu 9216"', 'MORE="--lr 1 --max-tokens-per-gpu 4096"')
        ]

    def test_in_every_branch(self):
        text = (
            f"if [ -d /data ]; then\nARGS=(--max-tokens-per-gpu 1)\nelse\nARGS=(--max-tokens-per-gpu 2)\nfi\n"
            f"{RUN} ${{ARGS[@]}}"
        )
        assert [new for _, new in changed(text, CAP)] == ["ARGS=(--max-tokens-per-gpu 4096)"] * 2

    def test_the_same_text_elsewhere_stays(self):
        text = f"# --max-tokens-per-gpu 9216\necho --max-tokens-per-gpu 9216\n{RUN} --max-tokens-per-gpu 9216"
        assert len(changed(text, CAP)) == 1

    def test_what_is_set_already_is_no_change(self):
        text = f"{RUN} --max-tokens-per-gpu 4096"
        assert patched(text, CAP) == text

    def test_a_key_of_hydra(self):
        text = "N=8\npython3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.n=$N\n"
        assert changed(text, Edit("actor_rollout_ref.rollout.n", "4")) == [("N=8", "N=4")]


class TestTakingAway:
    def test_a_line_of_its_own_goes(self):
        text = "ARGS=(\n   --lr 1\n   --use-kl-loss\n   --kl-loss-coef 0 # c\n)\n" + RUN + "${ARGS[@]}\n"
        assert patched(text, Edit("use-kl-loss", gone=True)) == text.replace("   --use-kl-loss\n", "")

    def test_a_comment_behind_it_stays(self):
        text = "ARGS=(\n   --use-kl-loss # free\n   --lr 1\n)\n" + RUN + "${ARGS[@]}\n"
        assert "# free" in patched(text, Edit("use-kl-loss", gone=True))

    def test_the_last_line_of_a_command_does_not_join_the_next(self):
        text = f"{RUN} \\\n   --lr 1 \\\n   --use-kl-loss\nray start --head\n"
        found = read_text(patched(text, Edit("use-kl-loss", gone=True)))
        assert [command.program for command in found.commands] == ["python3", "ray"]

    def test_within_a_line(self):
        text = f"{RUN} --use-kl-loss --kl-coef 0.1 --lr 1"
        assert patched(text, Edit("use-kl-loss", gone=True), Edit("kl-coef", gone=True)) == f"{RUN} --lr 1"

    def test_what_is_not_there_is_no_change(self):
        assert patched(RUN, Edit("use-kl-loss", gone=True)) == RUN


class TestAdding:
    def test_beside_its_neighbours(self):
        text = "A=(\n  --lr 1\n)\nPERF=(\n\t--micro-batch-size 1 # one\n)\n" + RUN + "${A[@]} ${PERF[@]}"
        assert "\t--micro-batch-size 1 # one\n\t--recompute-granularity full\n)" in patched(
            text, Edit("recompute-granularity", "full")
        )

    def test_in_a_command_over_several_lines(self):
        text = f"{RUN} \\\n   --lr 1 \\\n   --colocate\n"
        assert (
            patched(text, Edit("lora-rank", "16")) == f"{RUN} \\\n   --lr 1 \\\n   --lora-rank 16 \\\n   --colocate\n"
        )

    def test_behind_the_last_word_of_a_command(self):
        text = f"{RUN} \\\n   --colocate\necho done\n"
        assert settings_of(read_text(patched(text, Edit("lora-rank", "16")))).settings["lora_rank"] == 16

    def test_a_key_of_hydra_beside_those_of_its_section(self):
        text = (
            "python3 -m verl.trainer.main_ppo \\\n  actor_rollout_ref.model.path=/m \\\n  data.train_batch_size=64\n"
        )
        assert "path=/m \\\n  actor_rollout_ref.model.lora_rank=16 \\\n" in patched(
            text, Edit("actor_rollout_ref.model.lora_rank", "16")
        )


class TestSourcedFiles:
    """Files that a script sources are not touched: a later flag in the script itself wins."""

    def test_a_value_is_overridden(self):
        path = SCRIPTS / "miles-sourcing.sh"
        before = (SCRIPTS / "miles-common.sh").read_bytes()
        found = patch(str(path), path.read_text(), [CAP], path=path, root=SCRIPTS)
        assert "miles-common.sh line 13 sets it too, and is not touched" in found.notes[0]
        again = read_text(found.text, str(path), path, SCRIPTS)
        assert settings_of(again).settings["max_tokens_per_gpu"] == 4096
        assert (SCRIPTS / "miles-common.sh").read_bytes() == before

    def test_a_flag_there_cannot_be_taken_away(self, tmp_path):
        (tmp_path / "common.sh").write_text("ARGS=(--use-kl-loss)\n")
        path = tmp_path / "run.sh"
        text = f"source common.sh\n{RUN} ${{ARGS[@]}}"
        path.write_text(text)
        with pytest.raises(InputError, match=r"common\.sh line 1, a file that the script sources"):
            patch(str(path), text, [Edit("use-kl-loss", gone=True)], path=path, root=tmp_path)


class TestRefusals:
    @pytest.mark.parametrize(
        "text",
        [
            'for f in max-tokens-per-gpu lr; do ARGS+=("--$f" 9216); done\n' + RUN + '"${ARGS[@]}"',
            "bash -c 'python3 train.py --rollout-batch-size 8 --max-tokens-per-gpu 9216'",
        ],
    )
    def test_what_cannot_be_edited(self, text):
        with pytest.raises(InputError, match=r"--max-tokens-per-gpu cannot be"):
            patched(text, CAP)

    def test_all_reasons_at_once(self):
        text = "bash -c 'python3 train.py --rollout-batch-size 8 --lr 1 --max-tokens-per-gpu 9216'"
        with pytest.raises(InputError) as caught:
            patched(text, CAP, Edit("lr", "2"))
        assert len(caught.value.problems) == 2


class TestBytes:
    def test_letters_of_more_than_a_byte_and_line_ends(self):
        text = f"# größer als nötig: 显存\r\n{RUN} --lr 1 --max-tokens-per-gpu 9216 # ünder\n\n\n"
        assert patched(text, CAP) == text.replace("9216", "4096")

    @pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
    def test_scripts_of_every_style(self, path):
        text = path.read_text()
        try:
            found = patch(str(path), text, [CAP, Edit("use-kl-loss", gone=True)], path=path, root=SCRIPTS)
        except InputError as error:
            refused = error.problems
        else:
            refused = ()
        assert all("cannot be" in problem or "not touched" in problem for problem in refused)
        if refused:
            return
        settings = settings_of(read_text(found.text, str(path), path, SCRIPTS)).settings
        before = settings_of(read_text(text, str(path), path, SCRIPTS)).settings
        assert settings["max_tokens_per_gpu"] == 4096
        assert settings["use_kl_loss"] is False
        apart = {key for key, value in before.items() if settings.get(key) != value}
        assert apart <= {"max_tokens_per_gpu", "use_kl_loss", "reference_loaded"}
        assert found.diff.startswith("--- ") or text == found.text


class TestWords:
    def test_several_flags(self):
        text = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
        assert [edit.value for edit in edits_of(text, Found("slime"))] == ["full", "uniform", "1"]

    def test_keys_of_hydra(self):
        found = Found("verl")
        assert edits_of("actor_rollout_ref.rollout.gpu_memory_utilization=0.5 -> 0.25", found) == (
            Edit("actor_rollout_ref.rollout.gpu_memory_utilization", "0.25"),
        )

    def test_switches_and_several_changes(self):
        assert edits_of("--train-backend megatron and --lora-rank 16 and --colocate", Found("miles")) == (
            Edit("train-backend", "megatron"), Edit("lora-rank", "16"), Edit("colocate"),
        )  # fmt: skip

    def test_a_default_that_is_given_otherwise_is_set(self):
        found = Found("slime", derived={"kl_coef": 0.0}, flags={"kl-coef": ("0.1",)})
        assert edits_of("--kl-coef 0", found) == (Edit("kl-coef", "0"),)

    def test_words_that_are_no_flags(self):
        with pytest.raises(InputError, match="make it by hand"):
            edits_of("load the parameters in bfloat16", Found("trl"))
