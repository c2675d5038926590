"""The variant of a script: four full-length steps, and nothing else changed. bash itself reads the copies."""

import json
import subprocess
from pathlib import Path

import pytest

from headway.cli.launch import read_launch
from headway.cli.rehearsal_script import write_variant
from headway.errors import InputError
from headway.foreign.found import Found
from headway.foreign.readers import settings_of
from headway.foreign.rehearsal import PREFERRED, variant
from headway.foreign.shell import read_text
from headway.foreign.shell.files import root_of

SCRIPTS = Path(__file__).parents[2] / "data" / "scripts"
NAMES = ["slime-arrays", "slime-moe-async", "slime-wrapped", "slime-functions", "miles-lora", "miles-fsdp"]


@pytest.mark.parametrize("name", NAMES)
def test_the_copy_has_the_rehearsal_s_flags_and_all_others_as_they_were(name: str, tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.sh"
    text = script.read_text()
    written = write_variant(script, tmp_path / "out")
    before = read_launch([str(script)]).found.flags
    # read in the original's place: elsewhere what it sources is outside the folder that may be read
    after = settings_of(read_text(written.path.read_text(), str(script), script, root_of(script))).flags
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert changed <= {
        "num-rollout", "save", "load", "start-rollout-id", "save-interval", "eval-interval", "rollout-stop",
        "rollout-stop-token-ids", "use-wandb", PREFERRED,
    }  # fmt: skip
    assert after["num-rollout"][-1] == "4"
    assert json.loads(after[PREFERRED][-1] or "") == {"ignore_eos": True}
    assert "use-wandb" not in after
    if "save" in before:
        assert after["save"][-1] == str(tmp_path / "out/checkpoints")
    for key in ("save-interval", "eval-interval"):
        assert (key in after) == (key in before)
        assert after.get(key, ("1",))[-1] == "1"
    assert script.read_text() == text
    assert subprocess.run(["bash", "-n", str(written.path)], check=False).returncode == 0


def test_bash_hands_the_flag_to_the_trainer_as_json(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\nARGS=(--rollout-batch-size 8 --n-samples-per-prompt 8 --colocate --save /c\n  --load /c)\n"
        "python3 train.py ${ARGS[@]} --num-rollout 9 --rollout-stop '<end>' --rollout-max-response-len 64\n"
    )
    written = write_variant(script, tmp_path / "out")
    python = tmp_path / "python3"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    words = subprocess.run(
        ["bash", str(written.path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    ).stdout.splitlines()
    assert words[words.index(f"--{PREFERRED}") + 1] == '{"ignore_eos":true}'
    assert words[words.index("--load") + 1] == str(tmp_path / "out/checkpoints")
    assert words[words.index("--num-rollout") + 1] == "4"
    assert words[words.index("--rollout-max-response-len") + 1] == "64"
    assert "--rollout-stop" not in words


def test_another_checkpoint_stays_and_the_steps_are_counted_from_0() -> None:
    made = variant(Found("miles", flags={"save": ("/c",), "load": ("/other",)}), Path("/r"))
    assert ("start-rollout-id", "0") in [(edit.name, edit.value) for edit in made.edits]
    assert "load" not in [edit.name for edit in made.edits]


def test_what_the_script_asks_of_sglang_stays() -> None:
    made = variant(Found("slime", flags={PREFERRED: ('{"top_k": 5}',)}), Path("/r"))
    assert [json.loads(edit.value) for edit in made.edits if edit.name == PREFERRED and edit.value] == [
        {"top_k": 5, "ignore_eos": True}
    ]
    with pytest.raises(InputError, match="no JSON object"):
        variant(Found("slime", flags={PREFERRED: ("$PREFERRED",)}), Path("/r"))


def test_code_that_decides_by_itself_is_named() -> None:
    made = variant(Found("slime", flags={"custom-generate-function-path": ("mine.generate",)}), Path("/r"))
    assert any("mine.generate" in note for note in made.notes)


def test_other_systems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="slime and Miles"):
        variant(Found("verl"), tmp_path)


def test_a_second_rehearsal_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    write_variant(SCRIPTS / "miles-fsdp.sh", tmp_path / "out")
    with pytest.raises(InputError, match="name a folder that is new"):
        write_variant(SCRIPTS / "miles-fsdp.sh", tmp_path / "out")


def test_what_would_end_the_copy_before_its_first_step_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        write_variant(SCRIPTS / "slime-step-75.sh", tmp_path / "out")
    lines = [problem.partition(": ")[0].rpartition(":")[2] for problem in caught.value.problems]
    assert lines == ["138", "40", "58"]
    assert "--prompt-data has no value" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_warnings_are_told_with_what_to_do(tmp_path: Path) -> None:
    notes = write_variant(SCRIPTS / "slime-arrays.sh", tmp_path / "out").notes
    assert any(note.startswith("warning line 54: a reference model is loaded") for note in notes)
    assert any("ray stop --force" in note and "(so does its copy)" in note for note in notes)
