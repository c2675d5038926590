"""`headway doctor` as a command: what it reads, prints and returns."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.errors import InputError

SEEDS = Path(__file__).parents[2] / "data" / "deaths" / "seeds"
FIRST, SECOND, STEP_75 = (str(SEEDS / f"{name}.log") for name in ("gb10-first", "gb10-second", "step-75"))
SCRIPT = str(Path(__file__).parents[2] / "data" / "scripts" / "slime-step-75.sh")
ANSWER = {
    "sentence", "mechanism", "mechanism_grade", "cause", "cause_grade", "family", "phase", "step", "component",
    "process", "evidence", "ruled_out", "would_settle", "remedies",
}  # fmt: skip


def run(*words: str, given: str | bytes | None = None, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["doctor", *words], input=given)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def test_one_sentence_first_then_what_shows_it():
    text = run(FIRST)
    assert text.startswith("Ray's memory monitor killed a worker because the node, not a GPU, held 115.86")
    flat = " ".join(text.split())
    for title in ("What shows it", "Ruled out", "What to change", "What would settle it"):
        assert title in flat
    assert f"{Path(FIRST).name}:1" in text


def test_not_established_is_exit_code_4():
    assert "a memory-limit kill cannot print this" in " ".join(run(STEP_75, code=4).split())


def test_json_has_every_key_of_the_answer():
    found = json.loads(run(FIRST, "--json"))
    assert found["answer"].keys() >= ANSWER
    assert found.keys() >= {"answer", "findings", "timeline"}
    place = found["answer"]["evidence"][0]
    assert (place["file"], place["line"]) == (FIRST, 1)
    assert place["text"] in Path(FIRST).read_text()


def test_the_timeline_is_in_the_order_of_the_lines():
    lines = [each["line"] for each in json.loads(run(FIRST, "--json"))["timeline"]]
    assert lines == sorted(lines)
    assert len(lines) >= 2


def test_two_attempts_are_compared():
    context = json.loads(run("--run", FIRST, "--run", SECOND, "--json"))["context"]
    assert any("made no room" in line for line in context)


def test_a_script_and_a_machine_bring_the_ledger_and_changes_in_the_script_s_own_flags():
    found = json.loads(run(STEP_75, "--script", SCRIPT, "--machine", "8xb200", "--json", code=4))
    assert any("evaluation (every 5) was due at step 75" in line for line in found["context"])
    assert any(line.startswith(("the plan on 8xb200", "the run cannot be planned"))
               for line in (*found["context"], *found["notes"]))  # fmt: skip


TRAINING = """step 1: train
Traceback (most recent call last):
  File "/root/slime/slime/backends/megatron_utils/actor.py", line 80, in train
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
"""


def test_a_change_is_told_once_by_the_ledger_and_by_advice(tmp_path):
    log = tmp_path / "job.log"
    log.write_text(TRAINING.rstrip() + " of which 1.00 GiB is free.\n")
    alone = json.loads(run(str(log), "--script", SCRIPT, "--json"))
    beside = json.loads(run(str(log), "--script", SCRIPT, "--machine", "8xh100-80", "--json"))
    texts = [[each["text"] for each in found["answer"]["remedies"]] for found in (alone, beside)]
    assert [sum("--rollout-max-response-len" in text for text in each) for each in texts] == [1, 1]
    assert "before_bytes" in beside["answer"]["remedies"][0], "the ledger's, which has sizes"
    assert any("--max-tokens-per-gpu 20480 -> 10240" in text for text in texts[1]), "not the ledger's: it stays"
    assert not any("recompute" in text for text in texts[0]), "the script has it on"
    assert len(beside["findings"]) == 1
    assert "Other ends" not in run(str(log), "--script", SCRIPT, "--machine", "8xh100-80")


@pytest.mark.parametrize(("machine", "pool"), [("gb10", "unified"), ("h100-80", "host")])
def test_what_ray_says_of_a_node_is_its_host_memory_only_where_that_is_apart(tmp_path, machine: str, pool: str):
    log, script = tmp_path / "run.log", tmp_path / "run.sh"
    log.write_text(
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node "
        "(IP: 10.0.0.5) where the task (actor ID: 7, pid=9, memory used=62.10GB) was running was 115.90GB / 121.69GB "
        "(0.9524), which exceeds the memory usage threshold of 0.95.\n"
    )
    script.write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct "
        "trainer.n_gpus_per_node=1 algorithm.adv_estimator=grpo\n"
    )
    words = (str(log), "--script", str(script), "--machine", machine)
    context = json.loads(run(*words, "--json", code=4))["context"]
    assert any(line.startswith(f"node[0].{pool}: ") and "no limit is known" not in line for line in context)
    if machine == "gb10":  # what the user sets is still refused
        with pytest.raises(InputError, match="no host memory apart"):
            run(*words, "--set", "machine.host=128e9")


def test_a_script_that_starts_no_known_trainer_is_told_and_the_answer_stays(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("python3 my_own.py\n")
    text = " ".join(run(FIRST, "--script", str(script)).split())
    assert "115.86 GiB" in text
    assert "no trainer that is known is started" in text


def test_a_script_of_a_trainer_that_is_not_read_still_says_whose_flags_and_which_platform(tmp_path):
    refused, killed, script = (tmp_path / name for name in ("job.log", "killed.log", "run.sh"))
    refused.write_text(TRAINING.replace("/root/slime/slime/backends/megatron_utils/actor.py", "/home/me/x.py"))
    killed.write_text("Killed\n")
    script.write_text("#SBATCH -N 2\n# docker run image\nsrun axolotl train qwen.yml --micro-batch-size 4\n")
    found = json.loads(run(str(refused), "--script", str(script), "--json"))["answer"]
    assert found["remedies"][0]["text"].endswith("(micro_batch_size 4 -> 2)")
    asked = json.loads(run(str(killed), "--script", str(script), "--json", code=4))["answer"]["would_settle"]
    commands = " ".join(each["command"] for each in asked)
    assert "sacct" in commands
    assert "docker" not in commands


def test_a_script_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(InputError, match=r"no\.sh"):
        run(FIRST, "--script", str(tmp_path / "no.sh"))


def test_standard_input():
    assert "SIGTERM" in run("-", given=Path(STEP_75).read_text(), code=4)


def test_a_folder_of_logs_and_gzip(tmp_path):
    (tmp_path / "worker-1.err").write_text("nothing\n")
    (tmp_path / "driver.log.gz").write_bytes(gzip.compress(Path(FIRST).read_bytes()))
    assert "115.86" in run(str(tmp_path))


def test_every_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError) as error:
        run(str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    assert len(error.value.problems) == 2


def test_nothing_named_is_bad_input():
    with pytest.raises(InputError, match="nothing to read"):
        run()


@pytest.mark.parametrize(
    ("name", "data", "holds"),
    [
        ("empty.log", b"", "empty"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0", "20 B that are no text"),
        ("model.pt", b"PK\x03\x04" + bytes(200), "packed with zip: unpack it first"),
        ("a.gz", gzip.compress(bytes(range(256)) * 9), "2.2 KiB that are no text"),
        ("one.log", b"hello", "1 line, which tells of no end"),
        ("steps.log", b"step 1: loss 2\nstep 75: loss 1\n", "2 lines up to step 75, none of which tells of an end"),
    ],
)
def test_what_holds_no_end_is_told_with_what_to_give_instead(name, data, holds, tmp_path):
    path = tmp_path / name
    path.write_bytes(data)
    text = "".join(run(str(path), code=4).split())  # a path that is longer than a line is broken
    found = json.loads(run(str(path), "--json", code=4))["answer"]
    assert found["sentence"].startswith(f"Nothing here says how a run ended ({path}: {holds}); give what the run")
    assert text.startswith("".join(found["sentence"].split()))
    assert (found["mechanism"], found["evidence"]) == ("unknown", [])


def test_a_folder_with_nothing_to_read_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="the folder is empty; give what the run"):
        run(str(tmp_path))
    (tmp_path / "worker.err").touch()
    with pytest.raises(InputError, match=r"every log in the folder is empty \(worker.err\)"):
        run(str(tmp_path))


def test_the_sentence_goes_to_the_termination_log(tmp_path):
    target = tmp_path / "termination-log"
    run(FIRST, "--termination-log", str(target))
    assert target.read_text().startswith("Ray's memory monitor killed")


def test_a_termination_log_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(InputError, match="--termination-log"):
        run(FIRST, "--termination-log", str(tmp_path / "no" / "such"))


def test_explain_prints_a_rule():
    text = run("--explain", "sigterm")
    assert text.startswith("# sigterm")
    assert "cannot print" in text


def test_explain_names_the_nearest():
    with pytest.raises(InputError, match="disk-full"):
        run("--explain", "disk-ful")


def test_a_run_that_fits_is_told_what_it_can_leave_out_and_what_its_pod_needs():
    words = (STEP_75, "--script", SCRIPT, "--machine", "b200x8", "--set", "host.bytes=1600e9", "--json")
    found = json.loads(run(*words, code=4))
    reference, pod = (each for each in found["answer"]["remedies"] if "pool" in each)
    assert "--use-kl-loss" in reference["text"]
    assert reference["pool"] == pod["pool"] == "node[0].host"
    assert reference["before_bytes"] - reference["after_bytes"] > 70 << 30
    assert "resources.limits.memory" in pod["text"]
    assert pod["after_bytes"] < 1600e9
    assert any("ends others by SIGKILL: it did not send this SIGTERM" in line for line in found["context"])


def test_a_setting_without_a_plan_to_change_is_refused():
    with pytest.raises(InputError, match="--script and --machine"):
        run(STEP_75, "--set", "host.bytes=1600e9")


def test_an_empty_log_is_no_death_that_is_known(tmp_path):
    empty, died = tmp_path / "empty.log", tmp_path / "died.log"
    empty.write_text("")
    died.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    answers = [json.loads(run(str(path), "--json", code=4))["answer"] for path in (empty, died)]
    assert [answer["outcome"] for answer in answers] == ["unknown", "died"]


def test_an_address_is_not_fetched_and_is_shown_as_it_was_given():
    with pytest.raises(InputError, match=r"https://example\.com/job\.log: is an address.*save the log"):
        run("https://example.com/job.log")
