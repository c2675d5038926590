"""What a plan knows of a run's problems: counted, bounded or sampled, and what is refused for it."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headway.config.load import load
from headway.config.sections import DataSection, EvalSection, ModelSection, RolloutSection, RunSpec
from headway.config.source import ModelSource, resolve
from headway.config.workload import to_workload
from headway.errors import InputError
from headway.rollout.data import load_problems
from headway.rollout.lengths import FileTokenizer, data_facts, light_tokenizer
from headway.train.tokenizer import CHAT_TEMPLATE, byte_tokenizer

RANDOM = ModelSection(path="tiny-llama", init="random", dtype="fp32")


def runspec(folder: Path, texts: list[str], **data) -> RunSpec:
    file = folder / "problems.jsonl"
    file.write_text("".join(json.dumps({"prompt": text, "label": "1"}) + "\n" for text in texts))
    return RunSpec(model=RANDOM, data=DataSection(file=file, **data))


def sums(count: int) -> list[str]:
    return [f"{at} + {at * 7} = ?" for at in range(count)]


@pytest.mark.parametrize("form", ["chat", "text"])
@pytest.mark.parametrize("system", [None, "Be brief. \u00e9"])
def test_the_longest_prompt_is_the_one_that_the_run_has(tmp_path: Path, form: str, system: str | None) -> None:
    if form == "text" and system is not None:
        return
    texts = [*sums(60), "\u00e9\u00e9\u00e9 " * 9, "a longer question about nothing " * 3]
    spec = runspec(tmp_path, texts, format=form, system=system)
    found = data_facts(spec, resolve(spec.model), thorough=False)
    problems = load_problems(spec.data, spec.eval, byte_tokenizer(), 0)
    assert found.longest == max(len(each.prompt_ids) for each in (*problems.train, *problems.held_out))
    assert (found.exact, found.said) == (True, "")
    assert (found.train, found.held_out) == (len(problems.train), len(problems.held_out))


def model_folder(folder: Path) -> Path:
    """A byte-pair tokenizer with a few merges, as transformers writes it."""
    letters = {chr(at): at - 32 for at in range(32, 127)}
    merges = [("a", "b"), ("ab", "c"), (" ", "x")]
    for pair in merges:
        letters["".join(pair)] = len(letters)
    fast = Tokenizer(models.BPE(vocab=letters, merges=merges))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    template = "{{ bos_token }}{% generation %}{% endgeneration %}" + CHAT_TEMPLATE
    PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<|im_start|>", eos_token="<|im_end|>", chat_template=template
    ).save_pretrained(folder)
    return folder


def test_a_tokenizer_on_disk_counts_as_transformers_does(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    own, theirs = FileTokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    chat = [{"role": "system", "content": "abc x"}, {"role": "user", "content": "ab abcabc <|im_end|>"}]
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    assert own.apply_chat_template(chat, **how) == list(theirs.apply_chat_template(chat, **how))
    assert list(own("abc ab x")["input_ids"]) == theirs("abc ab x")["input_ids"]


def test_a_torn_tokenizer_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    assert light_tokenizer(ModelSource("folder", "x", tmp_path, None, 0)) is None


def test_without_a_tokenizer_the_prompt_s_bytes_are_the_bound(tmp_path: Path) -> None:
    spec = runspec(tmp_path, sums(40), format="text")
    source = ModelSource("hub", "owner/name", None, resolve(RANDOM).shape, 0)
    found = data_facts(spec, source, thorough=False)
    assert not found.exact
    assert "a bound from their bytes" in found.said
    assert max(map(len, sums(40))) <= found.longest < spec.data.max_prompt


def test_a_file_of_200_has_a_tenth_held_out_and_trains(tmp_path: Path) -> None:
    spec = runspec(tmp_path, sums(200))
    workload = to_workload(spec, resolve(spec.model), data=data_facts(spec, resolve(spec.model), thorough=False))
    assert (workload.problems, workload.rollout.eval_problems) == (200, 20)
    problems = load_problems(spec.data, spec.eval, byte_tokenizer(), 0)
    assert (len(problems.train), len(problems.held_out)) == (180, 20)


def test_a_file_of_3_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    spec = runspec(tmp_path, sums(3))
    facts = data_facts(spec, resolve(spec.model), thorough=False)
    with pytest.raises(InputError, match=r"only 3 training problems; set rollout.prompts = 3 or less, or give 5"):
        to_workload(spec, resolve(spec.model), data=facts)
    enough = spec.model_copy(update={"rollout": RolloutSection(prompts=3)})
    workload = to_workload(enough, resolve(spec.model), data=facts)
    assert workload.unknown == (
        "eval.problems = 0: every tenth of 3 problems is none; set it, or eval.file, to evaluate",
    )


def test_problems_over_the_limit_are_dropped_before_they_are_counted(tmp_path: Path) -> None:
    texts = [*sums(40), *("x" * 300 + str(at) for at in range(30)), "y" * 200_000]
    spec = runspec(tmp_path, texts, format="text", max_prompt=40)
    found = data_facts(spec, resolve(spec.model), thorough=False)
    problems = load_problems(spec.data, spec.eval, byte_tokenizer(), 0)
    assert problems.dropped_long == 31
    assert (found.train, found.held_out) == (len(problems.train), len(problems.held_out))
    assert found.exact


@pytest.mark.parametrize(("kept", "tokens"), [(["z" * 900], 900), ([], 1000)])
def test_more_text_than_a_plan_counts_is_said(tmp_path: Path, kept: list[str], tokens: int) -> None:
    long = [f"{at:06}" + "x" * 20_000 for at in range(70)]  # over the limit, and a megabyte
    spec = runspec(tmp_path, [*kept, *long, *sums(20)], format="text", max_prompt=1000)
    found = data_facts(spec, resolve(spec.model), thorough=False)
    assert not found.exact
    assert found.longest == 1000  # none that is kept was counted
    short = runspec(tmp_path, [*kept, *long[:9], *sums(20)], format="text", max_prompt=1000)
    exact = data_facts(short, resolve(short.model), thorough=False)
    assert exact.exact
    assert exact.longest == (tokens if kept else max(map(len, sums(20))))


def test_a_large_file_is_read_by_the_dry_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.rollout.lengths.FILE_BYTES", 100)
    spec = runspec(tmp_path, sums(40))
    plain, whole = (data_facts(spec, resolve(spec.model), thorough=thorough) for thorough in (False, True))
    assert (plain.longest, plain.exact) == (spec.data.max_prompt, False)
    assert whole.exact


def test_as_many_problems_as_are_missing_are_enough(tmp_path: Path) -> None:
    def planned(total: int, **data: int) -> None:
        spec = runspec(tmp_path, sums(total), **data)
        spec = spec.model_copy(update={"rollout": RolloutSection(prompts=200)})
        to_workload(spec, resolve(spec.model), data=data_facts(spec, resolve(spec.model), thorough=False))

    with pytest.raises(InputError, match=r"set rollout.prompts = 180 or less, or give 22 more problems"):
        planned(200)
    planned(222)
    with pytest.raises(InputError):
        planned(221)
    with pytest.raises(InputError, match=r"set data.problems = 200 or more"):
        planned(300, problems=100)


def test_what_is_asked_for_is_held_out(tmp_path: Path) -> None:
    spec = runspec(tmp_path, sums(50)).model_copy(update={"eval": EvalSection(problems=30)})
    assert data_facts(spec, resolve(spec.model), thorough=False).held_out == 30


def test_a_kv_budget_below_one_answer_is_refused(tmp_path: Path) -> None:
    spec = runspec(tmp_path, sums(100), format="text")
    source = resolve(spec.model)
    facts = data_facts(spec, source, thorough=False)
    one = (facts.longest + spec.rollout.max_answer) * 2 * 2 * 2 * 16 * 4

    def planned(budget: int) -> None:
        rollout = spec.rollout.model_copy(update={"kv_budget": budget})
        to_workload(spec.model_copy(update={"rollout": rollout}), source, data=facts)

    planned(one)
    with pytest.raises(InputError, match=r"set rollout.kv_budget to at least 1MiB"):
        planned(one - 1)


def test_the_context_is_a_limit_of_prompt_and_answer(tmp_path: Path) -> None:
    folder = tmp_path / "run.toml"
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "{at}", "label": "1"}}\n' for at in range(10, 99)))
    folder.write_text(
        '[model]\npath = "smollm2-135M"\ninit = "random"\n[data]\nfile = "p.jsonl"\nformat = "text"\n'
        '[reward]\nkind = "exact"\n'
    )

    def planned(answer: int) -> None:
        spec = load(folder, [f"rollout.max_answer={answer}"])
        source = resolve(spec.model)
        to_workload(spec, source, data=data_facts(spec, source, thorough=False))

    planned(8190)  # prompts of two bytes
    with pytest.raises(InputError, match=r"set rollout.max_answer = 8190 or less"):
        planned(8191)


def test_prompts_over_the_limit_are_refused_with_the_shortest(tmp_path: Path) -> None:
    spec = runspec(tmp_path, sums(20), format="text", max_prompt=3)
    with pytest.raises(InputError, match=r"set data.max_prompt to that or more"):
        data_facts(spec, resolve(spec.model), thorough=False)
