"""Problems from tasks and files, their prompts, the held-out ones, and their order."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headway.config.sections import DataSection, EvalSection
from headway.errors import InputError
from headway.rollout.data import ProblemSet, digest_of, load_problems, prompts_for_step
from headway.rollout.reward_process import open_dataset

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}[end]"
    "{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NO_EVAL = EvalSection(problems=0)


def byte_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """One token per byte, and a start token that the tokenizer adds to any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "<s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", chat_template=chat_template)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(CHAT_TEMPLATE)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows as JSON lines; text is a line as it is."""

    def write(rows: Iterable[Any], name: str = "problems.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return path

    return write


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{i} + 1?", "label": i + 1} for i in range(count)]


def load(
    file: Path, tokenizer: PreTrainedTokenizerFast, evaluation: EvalSection = NO_EVAL, **data: Any
) -> ProblemSet:
    return load_problems(DataSection(file=file, **data), evaluation, tokenizer, 0)


def shown(tokenizer: PreTrainedTokenizerFast, problems: ProblemSet) -> list[str]:
    return [tokenizer.decode(problem.prompt_ids) for problem in problems.train]


# -- prompts ---------------------------------------------------------------------------------------------


def test_chat_prompts_go_through_template_and_chat_template(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    file = written([{"prompt": "What is {x} {0}?", "label": "1"}])
    loaded = load(file, tokenizer, system="Be brief.", template="Q: {prompt} {y}")
    assert shown(tokenizer, loaded) == ["[system]Be brief.[end][user]Q: What is {x} {0}? {y}[end][assistant]"]
    assert loaded.train[0].prompt == "What is {x} {0}?"


def test_text_prompts_take_the_special_tokens_that_any_text_takes(written: Callable[..., Path]) -> None:
    tokenizer = byte_tokenizer(None)
    file = written(sums(1))
    assert shown(tokenizer, load(file, tokenizer, format="text", template="Q {prompt}\nA ")) == ["<s>Q 0 + 1?\nA "]
    with pytest.raises(InputError, match=r'no chat template; set data\.format = "text"'):
        load(file, tokenizer)


def test_messages_keep_their_roles_and_the_template_goes_around_the_last_of_the_user(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    chat = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    file = written([{"prompt": chat, "label": 1}, {"prompt": [{"role": "user", "content": "alone"}], "label": 1}])
    loaded = load(file, tokenizer, system="default", template="<{prompt}>")
    assert shown(tokenizer, loaded) == [
        "[system]S[end][user]one[end][assistant]two[end][user]<three>[end][assistant]",
        "[system]default[end][user]<alone>[end][assistant]",
    ]
    assert [problem.prompt for problem in loaded.train] == [
        "system: S\n\nuser: one\n\nassistant: two\n\nuser: three",
        "alone",
    ]
    with pytest.raises(
        InputError, match=r'problems\.jsonl", line 1 is a list of messages; set data\.format = "chat"'
    ):
        load(file, tokenizer, format="text")


def test_messages_that_the_chat_template_refuses(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]
    with pytest.raises(InputError, match=r"refuses the messages \(user, tool\) of .*line 1: .*no tools here"):
        load(written([{"prompt": chat, "label": 1}]), tokenizer)


def test_prompts_over_the_limit_are_dropped_and_counted(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    file = written([{"prompt": "x" * n, "label": n} for n in (30, 1, 31, 2)])
    length = len(load(file, tokenizer, max_prompt=512).train[0].prompt_ids)
    loaded = load(file, tokenizer, max_prompt=length)
    assert [(problem.index, problem.label) for problem in loaded.train] == [(0, "30"), (1, "1"), (2, "2")]
    assert loaded.dropped_long == 1
    with pytest.raises(
        InputError, match=rf"max_prompt = 5: all 4 training prompts.*shortest has {length - 29} tokens"
    ):
        load(file, tokenizer, max_prompt=5)


def test_a_prompt_of_megabytes_is_dropped_without_the_tokenizer(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenized: list[int] = []
    real = tokenizer.apply_chat_template

    def recorded(conversation: list[dict[str, str]], **options: Any) -> Any:
        tokenized.append(len(conversation[0]["content"]))
        return real(conversation, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", recorded)
    huge = {"prompt": "x" * 3_000_000, "label": 1}
    loaded = load(written([huge, *sums(2)]), tokenizer)
    assert (texts(loaded.train), loaded.dropped_long, tokenized) == (["0 + 1?", "1 + 1?"], 1, [6, 6])
    with pytest.raises(InputError, match=r"all 1 training prompts are longer; the shortest has 3000000 bytes: give"):
        load(written([huge]), tokenizer)


# -- files -----------------------------------------------------------------------------------------------

LABELS = ["2024-01-01", 1, 2.5, 123456789012345678901234567890, True, "007", "1.0"]
AS_TEXT = ["2024-01-01", "1", "2.5", "123456789012345678901234567890", "true", "007", "1.0"]


def test_json_labels_stay_as_they_are_written(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [{"prompt": f"p{i}", "label": label} for i, label in enumerate(LABELS)]
    lines = load(written([*rows[:3], "", *rows[3:]]), tokenizer)
    items = load(written([json.dumps(rows, indent=1)], "items.json"), tokenizer)
    lines_in_json = load(written(rows, "lines.json"), tokenizer)
    for loaded in (lines, items, lines_in_json):
        assert [problem.label for problem in loaded.train] == AS_TEXT


def test_parquet_is_read_and_nothing_of_it_lingers(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = [
        [{"role": "user", "content": f"p{i}"}] + [{"role": "user", "content": "q", "name": "n"}] * i for i in (0, 1)
    ]
    table = datasets.Dataset.from_dict({"question": chat, "answer": [1, 2], "other": ["a", "b"]})
    file = tmp_path / "pro[b]lems*.parquet"
    table.to_parquet(str(file))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    before = sorted(cache.rglob("*"))
    loaded = load(file, tokenizer, prompt_key="question", label_key="answer")
    assert [(problem.prompt, problem.label) for problem in loaded.train] == [
        ("p0", "1"),
        ("user: p1\n\nuser: q", "2"),
    ]
    assert list(scratch.iterdir()) == []
    assert sorted(cache.rglob("*")) == before
    with pytest.raises(
        InputError, match=r'data\.prompt_key = "prompt": is no key of .*, row 1; it has question, answer, other'
    ):
        load(file, tokenizer)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"holds no problems"),
        (['{"prompt": "a", "label": 1}', '{"prompt": '], r'^data\.file = "/.*/problems\.jsonl", line 2: is not JSON'),
        (["[1, 2]"], r'", line 1: is a list; it must be an object'),
        (
            [{"promt": "a", "answer": 1}],
            r'prompt_key = "prompt": is no key of .*, line 1; it has promt, answer; set data\.prompt_key = "promt"\n'
            r'data\.label_key = "label": .*set data\.label_key to one of them',
        ),
        (
            [{"prompt": "a", "label": 1}, {"prompt": "b"}],
            r'label_key = "label": is no key of data\.file = "/.*/problems\.jsonl", line 2;',
        ),
        (
            [{"prompt": "a", "label": None}],
            r'^data\.file = "/.*/problems\.jsonl", line 1: label is null; it must be text',
        ),
        (['{"prompt": "a", "label": 1}', "[" * 100_000], r'problems\.jsonl", line 2: is nested too deeply'),
        (['{"prompt": "a", "label": %s}' % ("9" * 5000)], r'", line 1: cannot be read: .*4300 digits'),
        (['{"prompt": "a", "label": NaN}'], r'", line 1: cannot be read: NaN is not JSON'),
        (['{"prompt": "a", "label": -Infinity}'], r'", line 1: cannot be read: -Infinity is not JSON'),
        (['{"prompt": "a", "label": 1e999}'], r"label is inf, which no answer can equal"),
        (
            [{"prompt": "a\ud800", "label": 1}],
            r'problems\.jsonl", line 1: prompt has \\ud800, half of a surrogate pair',
        ),
        ([{"prompt": "a", "label": "\udc00"}], r"label has \\udc00, half of a surrogate pair"),
        ([{"prompt": [{"role": "user", "content": "\ud800"}], "label": 1}], r"prompt has \\ud800"),
        ([{"prompt": "a", "label": [1]}], r"label is a list"),
        ([{"prompt": "", "label": 1}], r"prompt is an empty text; it must be text or a list"),
        ([{"prompt": 5, "label": 1}], r"prompt is a number \(5\)"),
        ([{"prompt": [], "label": 1}], r"prompt is an empty list"),
        ([{"prompt": [{"role": "user"}], "label": 1}], r"message that is not role and content"),
        ([{"prompt": [{"role": "system", "content": "a"}], "label": 1}], r"no message with role user"),
    ],
)
def test_bad_rows_are_named(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast, rows: list[Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load(written(rows), tokenizer)


def test_bad_files_are_named(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9", "label": 1}')
    (tmp_path / "items.json").write_text("[]")
    (tmp_path / "torn.json").write_text('[{"prompt": "a"')
    (tmp_path / "no.parquet").write_text("hello")
    (tmp_path / "table.csv").write_text("prompt,label")
    for name, message in {
        "latin.jsonl": r'latin\.jsonl", line 1: is not UTF-8 text \(byte 15\)',
        "items.json": r'^data\.file = "/.*items\.json": holds no problems',
        "torn.json": r'^data\.file = "/.*torn\.json": is not JSON',
        "no.parquet": r'^data\.file = "/.*no\.parquet": is not a Parquet file',
        ".": r'^data\.file = "/.*": is a folder; set it to a \.jsonl, \.json, \.parquet file$',
        "table.csv": r"must be one of \.jsonl, \.json, \.parquet",
        "absent.jsonl": r'^data\.file = "/.*absent\.jsonl": there is no such file',
    }.items():
        with pytest.raises(InputError, match=message):
            load(tmp_path / name, tokenizer)


# -- held out --------------------------------------------------------------------------------------------


def texts(problems: Iterable[Any]) -> list[str]:
    return [problem.prompt for problem in problems]


def test_held_out_problems_of_a_file_are_distinct_and_do_not_follow_data_problems(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    file = written([*sums(40), *sums(3)])
    many = load(file, tokenizer, EvalSection(problems=10))
    few = load(file, tokenizer, EvalSection(problems=10), problems=5)
    assert texts(many.held_out) == texts(few.held_out)
    assert (len(many.train), len(few.train), many.duplicates) == (30, 5, 3)
    assert set(texts(many.train)).isdisjoint(texts(many.held_out))
    assert texts(few.train) == texts(many.train)[:5]
    assert [problem.index for problem in few.held_out] == list(range(10))
    other = load_problems(DataSection(file=file), EvalSection(problems=10), tokenizer, seed=1)
    assert texts(other.held_out) != texts(many.held_out)
    with pytest.raises(
        InputError, match=r"40 distinct problems, and eval\.problems = 40 .*set eval\.problems below 40"
    ):
        load(file, tokenizer, EvalSection(problems=40))
    with pytest.raises(
        InputError, match=r"has 1 distinct problem, .*holds it out, .*: set eval\.problems = 0, give more problems"
    ):
        load(written(sums(1)), tokenizer, EvalSection(problems=40))


def test_training_problems_that_are_in_the_evaluation_file_are_left_out(
    written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    file, own = written(sums(6)), written([*sums(8)[4:], sums(5)[4]], "own.jsonl")
    loaded = load(file, tokenizer, EvalSection(problems=3, file=own))
    assert texts(loaded.held_out) == ["4 + 1?", "5 + 1?", "6 + 1?"]
    assert texts(loaded.train) == ["0 + 1?", "1 + 1?", "2 + 1?", "3 + 1?"]
    assert (loaded.overlap, loaded.duplicates) == (2, 0)
    with pytest.raises(InputError, match=r"every problem is also in eval\.file"):
        load(file, tokenizer, EvalSection(problems=9, file=file))
    with pytest.raises(InputError, match=r'^eval\.file = "/.*/bad\.jsonl", line 1: is a number'):
        load(file, tokenizer, EvalSection(problems=9, file=written([5], "bad.jsonl")))


def test_the_digest_tells_other_data(written: Callable[..., Path], tokenizer: PreTrainedTokenizerFast) -> None:
    rows = sums(4)
    first = digest_of(load(written(rows), tokenizer).train)
    assert digest_of(load(written(rows), tokenizer).train) == first
    rows[2] = rows[2] | {"label": 99}
    assert digest_of(load(written(rows), tokenizer).train) != first


# -- tasks -----------------------------------------------------------------------------------------------


def test_a_task_is_drawn_alike_in_every_process_and_held_out_first(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    # reasoning-gym makes these problems from sets of text, whose order follows the hash seed
    def drawn(problems: int, hash_seed: str) -> ProblemSet:
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        data = DataSection(task="isomorphic_strings", problems=problems)
        return load_problems(data, EvalSection(problems=5), tokenizer, 0)

    first, second = drawn(12, "1"), drawn(20, "2")
    assert [len(first.train), len(first.held_out)] == [12, 5]
    assert texts(first.held_out) == texts(second.held_out)
    assert texts(first.train) == texts(second.train)[:12]
    assert len({*texts(second.train), *texts(second.held_out)}) == 25
    assert all(problem.label in ("True", "False") and problem.entry for problem in first.train)


def test_a_task_with_too_few_problems_says_how_many_there_are(tokenizer: PreTrainedTokenizerFast) -> None:
    params = {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 5}
    with pytest.raises(
        InputError, match=r'"gcd" has only 25 distinct problems.*ask for 40: set the two to 25 or less'
    ):
        load_problems(DataSection(task="gcd", params=params, problems=30), EvalSection(problems=10), tokenizer, 0)


def test_an_unknown_task_is_refused_with_the_nearest(tokenizer: PreTrainedTokenizerFast) -> None:
    message = r'data\.task = "chain_sums": reasoning-gym has no such dataset; near it: chain_sum'
    with pytest.raises(InputError, match=message):
        load_problems(DataSection(task="chain_sums"), NO_EVAL, tokenizer, 0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"min_numberz": 2, "size": 3},
            r"data\.params\.min_numberz: gcd has no such parameter; near it: min_numbers.*\n"
            r"data\.params\.size: comes from data\.problems and train\.seed",
        ),
        ({"min_numbers": 5, "max_numbers": 2}, r"min_numbers = 5, max_numbers = 2: reasoning-gym refuses it"),
        ({"min_numbers": "two"}, r"min_numbers = 'two': reasoning-gym refuses it: TypeError"),
    ],
)
def test_parameters_that_a_task_does_not_take(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_dataset("gcd", params, seed=0, size=1)


# -- order -----------------------------------------------------------------------------------------------


@given(
    count=st.integers(1, 60),
    per_step=st.integers(1, 20),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
    passes=st.integers(1, 4),
)
def test_every_pass_takes_every_problem_once(
    count: int, per_step: int, seed: int, shuffle: bool, passes: int
) -> None:
    steps = [prompts_for_step(count, per_step, step, seed, shuffle) for step in range(-(-count * passes // per_step))]
    flat = [index for indices, _ in steps for index in indices]
    for start in range(0, count * passes, count):
        assert Counter(flat[start : start + count]) == Counter(range(count))
    assert [epoch for _, epoch in steps] == [step * per_step // count for step in range(len(steps))]
    if count >= 2 * per_step:
        assert all(len(set(indices)) == per_step for indices, _ in steps)


def test_a_step_is_the_same_whatever_was_asked_before() -> None:
    forward = [prompts_for_step(23, 5, step, 7, True) for step in range(40)]
    backward = [prompts_for_step(23, 5, step, 7, True) for step in reversed(range(40))]
    assert forward == backward[::-1]
    assert forward[:5] != [prompts_for_step(23, 5, step, 8, True) for step in range(5)]
    first, second = forward[0][0], prompts_for_step(23, 23, 1, 7, True)[0]
    assert first != second[:5]


def test_tasks_work_without_the_compiled_solver_and_the_one_that_needs_it_says_so():
    code = """
import sys
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *rest: None if name == "pycosat" else found(name, *rest)
from headway.rollout import reward_process
reward_process.find_spec = util.find_spec
setup = {"task": sys.argv[1], "params": {}}
print(reward_process.open_task(setup)({"draw": [0], "seed": 0, "size": 1}))
"""
    answers = [
        subprocess.run([sys.executable, "-c", code, task], capture_output=True, text=True, check=True).stdout
        for task in ("chain_sum", "zebra_puzzles")
    ]
    assert "drawn" in answers[0]
    assert "pip install pycosat" in answers[1]
