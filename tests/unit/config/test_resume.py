import pytest
from msgspec.structs import replace

from headway.config.accept import Accept
from headway.config.resume import Content, changes, check_content, check_keys, flat, said
from headway.config.sections import (
    DataSection,
    EvalSection,
    LoraSection,
    MemorySection,
    ModelSection,
    OutputSection,
    RewardSection,
    RunSpec,
    TrainSection,
)
from headway.errors import InputError

SPEC = RunSpec(model=ModelSection(path="base"), data=DataSection(file="sums.jsonl"))
CONTENT = Content(
    {"config.json": "1", "model.safetensors": "2"},
    {"mine.py": "3"},
    {"data.file": ("sums.jsonl", "4"), "eval.file": ("held.jsonl", "5")},
    "6",
    "7",
    0,
)


def changed(**sections: object) -> RunSpec:
    return SPEC.model_copy(update=sections)


def refusal(spec: RunSpec, *accepted: Accept, random: bool = False) -> str:
    """What keeps a run of SPEC from going on as another RunSpec; "" where nothing does."""
    try:
        check_keys("runs/a", 5, changes(flat(SPEC), flat(spec)), accepted, random=random)
    except InputError as error:
        return str(error)
    return ""


def test_speed_length_evaluation_memory_and_output_may_change() -> None:
    other = changed(
        memory=MemorySection(limit="1GiB"), output=OutputSection(keep=5, save_every=3, tensorboard=False),
        train=TrainSection(steps=7, cap=64, lr=5e-6, schedule="cosine", warmup=2, weight_decay=0.1, grad_clip=0.5),
        eval=EvalSection(every=2, samples=4), reward=RewardSection(timeout_s=3.0, memory="2GiB"),
    )  # fmt: skip
    assert refusal(other) == ""
    assert said(changes(flat(SPEC), flat(changed(train=TrainSection(steps=7, lr=5e-6))))) == (
        "train.steps 100 -> 7, train.lr 1e-05 -> 5e-06"
    )


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (changed(train=TrainSection(seed=1)), "train.seed 0 -> 1"),
        (changed(train=TrainSection(updates=2)), "train.updates 1 -> 2"),
        (changed(model=ModelSection(path="base", dtype="fp32")), "model.dtype 'bf16' -> 'fp32'"),
        (changed(lora=LoraSection(rank=4)), "lora.rank (not set) -> 4"),
        (changed(data=DataSection(task="chain_sum")), "data.task (not set) -> 'chain_sum'"),
    ],
)
def test_another_run_is_refused_with_what_to_do_instead(other: RunSpec, named: str) -> None:
    text = refusal(other, *Accept)
    assert named in text
    assert "set another output.dir for a new run" in text
    assert "headway export runs/a NEW --merge" in text


def test_a_path_is_not_compared_but_a_shape_with_random_weights_is() -> None:
    other = changed(model=ModelSection(path="/elsewhere/base"), data=DataSection(file="/elsewhere/sums.jsonl"))
    assert refusal(other) == ""
    assert "model.path 'base' -> '/elsewhere/base'" in refusal(other, random=True)


def test_a_reward_that_is_set_otherwise_needs_the_users_word() -> None:
    other = changed(reward=RewardSection(kind="math"))
    assert "reward.kind 'task' -> 'math' has changed since step 5" in refusal(other)
    assert "--accept-changes reward to go on with it from step 6 on" in refusal(other, Accept.DATA)
    assert refusal(other, Accept.REWARD) == ""


def test_the_same_content_says_nothing() -> None:
    assert check_content("runs/a", 5, CONTENT, CONTENT, (), ()) == ()


def test_other_bytes_that_make_the_same_problems_are_the_same_data() -> None:
    now = replace(CONTENT, files={"data.file": ("other.jsonl", "44"), "eval.file": ("held.jsonl", "5")})
    assert check_content("runs/a", 5, CONTENT, now, (), ()) == ()


@pytest.mark.parametrize(
    ("now", "named", "flag"),
    [
        (replace(CONTENT, reward={"mine.py": "33"}), "mine.py (reward) has changed since step 5", Accept.REWARD),
        (
            replace(CONTENT, reward={"mine.py": "3", "help.py": "8"}),
            "help.py (reward) has changed since step 5",
            Accept.REWARD,
        ),
        (
            replace(CONTENT, train="66", files=CONTENT.files | {"data.file": ("sums.jsonl", "44")}),
            "sums.jsonl (data.file) has changed since step 5",
            Accept.DATA,
        ),
        (
            replace(CONTENT, held_out="77", files=CONTENT.files | {"eval.file": ("held.jsonl", "55")}),
            "held.jsonl (eval.file) has changed since step 5",
            Accept.DATA,
        ),
        (replace(CONTENT, train="66"), "the set of problems (data.task) has changed", Accept.DATA),
    ],
)
def test_a_changed_file_is_named_and_may_be_accepted(now: Content, named: str, flag: Accept) -> None:
    others = [each for each in Accept if each is not flag]
    with pytest.raises(InputError) as error:
        check_content("runs/a", 5, CONTENT, now, (), others)
    assert named in str(error.value)
    assert f"--accept-changes {flag} " in str(error.value)
    (change,) = check_content("runs/a", 5, CONTENT, now, (), [flag])
    assert change.file is not None
    assert named.startswith(change.file)


def test_keys_that_make_other_problems_are_named_in_place_of_the_file() -> None:
    found = changes(flat(SPEC), flat(changed(data=DataSection(file="sums.jsonl", template="Q: {prompt}"))))
    with pytest.raises(InputError, match=r"data\.template '\{prompt\}' -> 'Q: \{prompt\}' has changed"):
        check_content("runs/a", 5, CONTENT, replace(CONTENT, train="66"), found, ())
    assert check_content("runs/a", 5, CONTENT, CONTENT, found, ()) == ()


def test_another_evaluation_that_is_asked_for_is_no_change_of_the_data() -> None:
    found = changes(flat(SPEC), flat(changed(eval=EvalSection(problems=9))))
    now = replace(CONTENT, held_out="77")
    assert check_content("runs/a", 5, CONTENT, now, found, ()) == ()
    with pytest.raises(InputError):
        check_content("runs/a", 5, CONTENT, now, (), ())


def test_another_model_is_refused_by_its_files_and_never_accepted() -> None:
    now = replace(CONTENT, model={"config.json": "1", "model.safetensors": "22"})
    with pytest.raises(InputError, match=r"model\.safetensors has other content than the model that the run in"):
        check_content("runs/a", 5, CONTENT, now, (), [*Accept])
