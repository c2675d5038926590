"""Scoring answers, and the reward process: real processes, real libraries."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headway.config.sections import DataSection, RewardSection
from headway.errors import InputError
from headway.rollout import reward_log
from headway.rollout.data import Problem
from headway.rollout.rewards import Answer, Score, Scorer, make_scorer
from headway.rollout.tasks import draw_records

FILE = DataSection(file=Path("problems.jsonl"))


def problem(label: str = "7", entry: bytes | None = None, prompt: str = "3 + 4?") -> Problem:
    return Problem(0, prompt, (1, 2), label, entry)


def scores(scorer: Scorer, texts: Sequence[str], label: str = "7") -> list[Score]:
    return scorer.score([Answer(problem(label), text) for text in texts])


def corrects(scorer: Scorer, texts: Sequence[str], label: str = "7") -> list[float | None]:
    return [score.score for score in scores(scorer, texts, label)]


def gone(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


# -- compared in place -----------------------------------------------------------------------------------


def test_exact_compares_the_extracted_answer() -> None:
    scorer = make_scorer(RewardSection(kind="exact", extract="last-number"), FILE)
    assert corrects(scorer, ["it is 7.", "07", "7.0", "17", "none"]) == [1, 1, 1, 0, 0]
    assert scores(scorer, ["none"])[0].note == "no answer found"
    assert scorer.pids() == ()
    assert not scorer.failures


def test_format_earns_its_share_in_training_and_nothing_in_evaluation() -> None:
    section = RewardSection(kind="exact", extract="last-number", format_pattern=r"Answer: \d+", format_weight=0.25)
    both, form, right, none = scores(
        make_scorer(section, FILE), [" Answer: 7\n", "Answer: 8", "so 7", "Answer: nine"]
    )
    assert [both.reward, form.reward, right.reward, none.reward] == [1.0, 0.25, 0.75, 0.0]
    assert [both.score, form.score, right.score, none.score] == [1, 0, 1, 0]


def test_regex_labels_match_whole() -> None:
    scorer = make_scorer(RewardSection(kind="regex", extract="last-line"), FILE)
    assert corrects(scorer, ["so\nyes", "Yes", "yes!"], r"[Yy]es|ja") == [1, 1, 0]


def test_regex_label_that_is_no_pattern_is_found_by_the_check() -> None:
    scorer = make_scorer(RewardSection(kind="regex"), FILE)
    with pytest.raises(InputError, match=r"label '\(7'.*is not a regular expression"):
        scorer.check([problem("7"), problem("(7")])


def test_patterns_that_take_too_long_score_nothing_and_are_counted() -> None:
    endless = r"(?:a|aa)+$"
    answer = "a" * 80 + "b"
    by_label = make_scorer(RewardSection(kind="regex", timeout_s=0.1), FILE)
    (score,) = scores(by_label, [answer], endless)
    assert (score.reward, by_label.failures["timeout"]) == (0, 1)
    section = RewardSection(
        kind="exact",
        extract="pattern",
        pattern=f"({endless})",
        format_pattern=endless,
        format_weight=0.5,
        timeout_s=0.1,
    )
    extracting = make_scorer(section, FILE)
    (score,) = scores(extracting, [answer])
    assert (score.reward, extracting.failures["timeout"]) == (0, 2)
    assert "longer than 0.1 s" in (score.note or "")


def test_settings_that_are_no_patterns_are_refused() -> None:
    with pytest.raises(InputError, match=r"reward\.format_pattern = '\('"):
        make_scorer(RewardSection(format_pattern="("), FILE)


# -- libraries -------------------------------------------------------------------------------------------


def test_math_compares_values_not_text() -> None:
    scorer = make_scorer(RewardSection(kind="math"), FILE)
    try:
        scorer.check([problem()])
        half = ["The answer is $\\frac{1}{2}$.", "so \\boxed{0.5}", "it is 0.5", "1/2", "it is 2"]
        assert corrects(scorer, half, "0.5") == [1, 1, 1, 1, 0]
        assert corrects(scorer, ["x^2 + 2x + 1", "$x^2$"], "(x+1)^2") == [1, 0]
        assert corrects(scorer, ["$\\{1, 2\\}$"], "\\{2, 1\\}") == [1]
        assert not scorer.failures
        assert scores(scorer, ["7"], " ")[0].note == "label ' ' is not mathematics"
        assert scorer.failures == {"label": 1}
    finally:
        scorer.close()


def test_a_task_is_scored_by_its_own_scorer_in_the_process() -> None:
    data = DataSection(task="countdown", params={"min_numbers": 3, "max_numbers": 3})
    section = RewardSection(kind="task", extract="last-line", timeout_s=1)
    with_entry = next(iter(drawn := draw_records("countdown", data.params, 5)))
    drawn.close()
    countdown = problem(with_entry.label, with_entry.entry)
    scorer = make_scorer(section, data)
    try:
        scorer.check([countdown])
        first = scorer.pids()
        full, tried, endless, again = scorer.score(
            [Answer(countdown, text) for text in (with_entry.label, "1 + 1", "9**9**9**9", with_entry.label)]
        )
        assert (full.reward, full.score) == (1, 1)
        assert 0 < tried.reward < 0.1  # the scorer's credit for trying is no right answer
        assert tried.score == 0
        # The scorer runs the answer as Python: it hangs a process of its own, not the trainer.
        assert (endless.reward, scorer.failures) == (0, {"timeout": 1})
        assert again.score == 1
        assert scorer.pids() != first
        with pytest.raises(InputError, match=r"is not from data\.task"):
            scorer.check([problem()])
    finally:
        scorer.close()


def test_a_task_scorer_needs_a_task() -> None:
    with pytest.raises(InputError, match=r"data\.task is not set"):
        make_scorer(RewardSection(kind="task"), FILE)


# -- the user's function ---------------------------------------------------------------------------------

FUNCTIONS = """
    import ctypes, os, subprocess, sys, time

    print("imported")

    def score(prompt, answer, label, response):
        action, _, value = answer.partition(" ")
        if action == "same":
            return answer == f"same {label}"
        if action == "eval":
            return eval(value)
        if action == "raise":
            raise ValueError("bad answer\\nsecond line")
        if action == "sleep":
            time.sleep(float(value))
            return 1
        if action == "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
            open(value, "w").write(str(child.pid))
            time.sleep(100)
        if action == "print":
            print("printed", flush=True)
            os.write(1, b"written\\n")
            subprocess.run([sys.executable, "-c", "print('grandchild')"])
            return 1
        if action == "read":
            return float(sys.stdin.read() == "")
        if action == "allocate":
            return len(bytearray(int(value))) > 0
        if action == "crash":
            ctypes.string_at(0)
        if action == "coroutine":
            return wait()
        return None

    async def wait():
        return 1.0

    async def awaited(prompt, answer, label, response):
        return 1.0

    def two(answer, label):
        return 1.0

    class Judge:
        async def __call__(self, prompt, answer, label, response):
            return 1.0

    awaited_object = Judge()

    def arguments(prompt, answer, label, response):
        return float((prompt, answer, label, response) == ("3 + 4?", "7", "seven", "so \\ud83d\\n7"))

    constant = 3
"""


@pytest.fixture
def functions(tmp_path: Path) -> Iterator[Callable[..., Scorer]]:
    """Makes checked scorers of `rewards:<name>`; the log of their process is `log` beside it."""
    (tmp_path / "own_rewards.py").write_text(textwrap.dedent(FUNCTIONS))
    made = []

    def make(name: str = "score", **settings: object) -> Scorer:
        section = RewardSection(kind="function", function=f"own_rewards:{name}", **settings)
        scorer = make_scorer(section, FILE, [tmp_path], tmp_path / "log")
        made.append(scorer)
        scorer.check([problem()])
        return scorer

    yield make
    for scorer in made:
        scorer.close()


def test_a_function_gets_prompt_answer_label_and_response(functions: Callable[..., Scorer]) -> None:
    scorer = functions("arguments", extract="last-line")
    assert corrects(scorer, ["so \ud83d\n7", "so 7"], "seven") == [1, 0]  # a lone surrogate arrives as it is


def test_a_function_gives_any_finite_number(functions: Callable[..., Scorer]) -> None:
    scorer = functions()
    answers = ["same 7", "same 8", "eval 0.25", "eval __import__('fractions').Fraction(1, 2)", "read"]
    assert corrects(scorer, [*answers, "eval -1", "eval 2.5", "eval -1e9"]) == [1, 0, 0.25, 0.5, 1, -1, 2.5, -1e9]
    assert not scorer.failures


@pytest.mark.parametrize(
    ("answer", "failure", "note"),
    [
        ("raise", "exception", r"ValueError: bad answer \(own_rewards.py:13\)"),
        ("eval sys.exit(3)", "exception", r"SystemExit: 3 .*"),
        ("eval float('nan')", "result", "returned NaN"),
        ("eval float('-inf')", "result", r"returned -inf: not finite in 32 bits"),
        ("eval 1e300", "result", r"returned 1e\+300: not finite in 32 bits"),
        ("eval '1'", "result", "returned the string '1': not a number"),
        ("coroutine", "result", "returned a coroutine: not a number; an async function is not awaited"),
        ("eval [1]", "result", r"returned \[1\]: not a number"),
        ("none", "result", "returned None: not a number; each path of the function must return one"),
    ],
)
def test_what_is_no_score_counts_as_a_failure(
    functions: Callable[..., Scorer], answer: str, failure: str, note: str
) -> None:
    scorer = functions()
    before = scorer.pids()
    failed, after = scores(scorer, [answer, "same 7"])
    assert (failed.reward, failed.score, after.score) == (None, None, 1)
    assert scorer.failures == {failure: 1}
    assert failed.note is not None
    assert re.fullmatch(note, failed.note), failed.note
    assert failed.failure == f"{failure}: {failed.note}"
    assert scorer.pids() == before


def test_first_failures_of_each_kind_are_told(functions: Callable[..., Scorer], tmp_path: Path) -> None:
    scorer = functions()
    scores(scorer, ["same 7", *(f"raise {count}" for count in range(7)), "none", "x" * 100])
    assert scorer.failures == {"exception": 7, "result": 2}
    assert scorer.first_failure == "exception: ValueError: bad answer (own_rewards.py:13)"
    log = (tmp_path / "log").read_text()
    assert log.count("reward failure, exception: ValueError: bad answer") == 5
    assert "answer: 'raise 4'\n" in log
    assert "raise 5" not in log
    assert 'raise ValueError("bad answer\\nsecond line")' in log  # the traceback's line of code
    assert f"answer: '...{'x' * 80}'\n" in log
    assert log.count("of the kind exception are only counted") == 1


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        ("eval os._exit(4)", "died (exit code 4)"),
        ("crash", "died (SIGSEGV)"),
        ("eval os.kill(os.getpid(), 9)", "died (SIGKILL)"),
    ],
)
def test_a_process_that_dies_is_started_again(functions: Callable[..., Scorer], answer: str, note: str) -> None:
    scorer = functions()
    (before,) = scorer.pids()
    failed, after = scores(scorer, [answer, "same 7"])
    assert (failed.reward, failed.note, after.score) == (None, note, 1)
    assert scorer.failures == {"died": 1}
    assert scorer.pids() != (before,)
    assert gone(before)


def test_a_death_between_answers_costs_no_answer(functions: Callable[..., Scorer]) -> None:
    scorer = functions()
    os.kill(scorer.pids()[0], signal.SIGKILL)
    assert wait_until(lambda: gone(scorer.pids()[0]))
    assert corrects(scorer, ["same 7"]) == [1]
    assert not scorer.failures


def test_a_function_that_hangs_is_ended_with_its_children(functions: Callable[..., Scorer], tmp_path: Path) -> None:
    scorer = functions(timeout_s=1.0)
    start = time.monotonic()
    failed, after = scores(scorer, [f"child {tmp_path / 'pid'}", "same 7"])
    assert time.monotonic() - start < 20
    assert (failed.reward, failed.note, after.score) == (None, "took longer than 1 s", 1)
    assert scorer.failures == {"timeout": 1}
    child = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: gone(child))


def test_the_limit_holds_for_each_answer_not_for_all(functions: Callable[..., Scorer]) -> None:
    assert corrects(functions(timeout_s=1.0), ["sleep 0.4"] * 4) == [1, 1, 1, 1]


def test_memory_is_limited(functions: Callable[..., Scorer]) -> None:
    scorer = functions(memory=100 << 20)
    assert corrects(scorer, [f"allocate {20 << 20}", f"allocate {200 << 20}", "same 7"]) == [1, None, 1]
    assert scorer.failures == {"exception": 1}


def test_a_lower_limit_that_was_there_before_stays() -> None:
    code = (
        "import resource; from headway.rollout.reward_process import limit_memory\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29)); limit_memory(1 << 30)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA) == (1 << 29, 1 << 29))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_soft_limit_of_the_parent_is_no_limit_of_the_reward() -> None:
    code = (
        "import resource; from headway.rollout.reward_process import limit_memory\n"
        "hard = resource.getrlimit(resource.RLIMIT_DATA)[1]\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, hard)); limit_memory(1 << 30)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1024\n", "")


def test_prints_reach_the_log_and_not_the_answers(functions: Callable[..., Scorer], tmp_path: Path) -> None:
    scorer = functions()
    assert corrects(scorer, ["print", "same 7"]) == [1, 1]
    assert (tmp_path / "log").read_text() == "imported\nprinted\nwritten\ngrandchild\n"


def test_an_interrupted_score_does_not_answer_the_next_one(functions: Callable[..., Scorer]) -> None:
    scorer = functions()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            scores(scorer, ["sleep 1"])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert corrects(scorer, ["same 8", "same 7"]) == [0, 1]


def test_the_process_is_small_and_has_no_torch(functions: Callable[..., Scorer]) -> None:
    scorer = functions()
    assert corrects(scorer, ["eval 'torch' in sys.modules", "eval 'numpy' in sys.modules"]) == [0, 0]
    (pid,) = scorer.pids()
    assert psutil.Process(pid).memory_info().rss < 48 << 20


def test_close_ends_the_process_and_may_come_twice(functions: Callable[..., Scorer]) -> None:
    scorer = functions()
    (pid,) = scorer.pids()
    scorer.close()
    scorer.close()
    assert gone(pid)
    assert scorer.pids() == ()


def test_the_process_ends_with_a_killed_parent(functions: Callable[..., Scorer], tmp_path: Path) -> None:
    functions()  # its module file
    script = f"""
        from pathlib import Path
        from headway.config.sections import DataSection, RewardSection
        from headway.rollout.data import Problem
        from headway.rollout.rewards import Answer, make_scorer
        section = RewardSection(kind="function", function="own_rewards:score", timeout_s=100)
        scorer = make_scorer(section, DataSection(file="x"), [Path({str(tmp_path)!r})])
        scorer.check([])
        print(scorer.pids()[0], flush=True)
        scorer.score([Answer(Problem(0, "p", (1,), "7", None), "sleep 100")])
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert not gone(pid)
        parent.kill()
    assert wait_until(lambda: gone(pid))


# -- the check at start ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("own_rewardz:score", r"there is no module own_rewardz in .*put its file beside the RunSpec"),
        ("own_rewards:scor", r"own_rewards has no scor; near it: score"),
        ("own_rewards:awaited", r"is an async function; headway calls awaited\(prompt, answer, label, response\)"),
        ("own_rewards:awaited_object", r"is an async function"),
        ("own_rewards:two", r"takes \(answer, label\); headway calls two\(prompt, answer, label, response\)"),
        ("own_rewards:constant", r"constant is int, not a function"),
        ("broken:score", r"importing broken fails with ModuleNotFoundError: .*no_such_thing.*\(broken.py:1\)"),
        ("torn:score", r"importing torn fails with SyntaxError"),
        ("leaves:score", r"importing leaves fails with SystemExit: 1"),
        ("dies:score", r"died \(exit code 9\) while it imported"),
        ("greedy:score", r"reward\.memory = 64\.0 MiB: is too little"),
    ],
)
def test_a_function_that_cannot_be_imported_is_found_by_the_check(
    tmp_path: Path, function: str, message: str
) -> None:
    (tmp_path / "own_rewards.py").write_text(textwrap.dedent(FUNCTIONS))
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    (tmp_path / "torn.py").write_text("def score(:\n")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(1)\n")
    (tmp_path / "dies.py").write_text("import os; os._exit(9)\n")
    (tmp_path / "greedy.py").write_text("big = bytearray(200 << 20)\n")
    section = RewardSection(kind="function", function=function, memory="64MiB")
    scorer = make_scorer(section, FILE, [tmp_path], tmp_path / "log")
    with pytest.raises(InputError, match=message):
        scorer.check([])
    assert scorer.pids() == ()


def test_a_module_that_never_ends_its_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless.py").write_text("while True: pass\n")
    monkeypatch.setattr("headway.rollout.rewards.FUNCTION_START_S", 0.5)
    section = RewardSection(kind="function", function="endless:score", timeout_s=1.5)
    scorer = make_scorer(section, FILE, [tmp_path], tmp_path / "log")
    with pytest.raises(
        InputError, match=r'reward\.function = "endless:score": .* longer than 1\.5 s while it imported'
    ):
        scorer.check([])
    assert scorer.pids() == ()


def test_a_function_is_found_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here_rewards.py").write_text("def score(prompt, answer, label, response):\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    scorer = make_scorer(RewardSection(kind="function", function="here_rewards:score"), FILE)
    try:
        assert corrects(scorer, ["anything"]) == [1]
    finally:
        scorer.close()


def test_a_log_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_log, "LARGEST_LOG", 1 << 20)
    (tmp_path / "talks.py").write_text(
        "def score(prompt, answer, label, response):\n    print('x' * (int(answer) << 10))\n    return -1.0\n"
    )
    section = RewardSection(kind="function", function="talks:score", timeout_s=20)
    scorer = make_scorer(section, FILE, [tmp_path], tmp_path / "log")
    try:
        assert corrects(scorer, ["3"]) == [-1]
        assert (tmp_path / "log").read_text() == "x" * 3072 + "\n"
        assert corrects(scorer, ["5000", "5000", "1"]) == [-1] * 3  # what is not kept stops no one
    finally:
        scorer.close()
    text = (tmp_path / "log").read_text()
    assert text.endswith("headway: this file has 1.0 MiB; later prints are not kept\n")
    assert text.count("headway:") == 1
    assert len(text) < (1 << 20) + 100


def test_no_answer_is_for_the_function_to_judge(tmp_path: Path) -> None:
    (tmp_path / "judges.py").write_text(
        "def score(prompt, answer, label, response):\n    return 2 if answer else -3\n"
    )
    section = RewardSection(kind="function", function="judges:score", extract="last-number")
    scorer = make_scorer(section, FILE, [tmp_path], tmp_path / "log")
    try:
        assert corrects(scorer, ["it is 7", "none"]) == [2, -3]
    finally:
        scorer.close()


def test_a_format_has_its_own_part_whatever_the_range(tmp_path: Path) -> None:
    (tmp_path / "ranges.py").write_text("def score(prompt, answer, label, response):\n    return float(answer)\n")
    section = RewardSection(
        kind="function", function="ranges:score", extract="last-number", format_pattern="A: .*", format_weight=0.25
    )
    scorer = make_scorer(section, FILE, [tmp_path], tmp_path / "log")
    try:
        assert [score.reward for score in scores(scorer, ["A: 2", "2", "A: -1", "-1"])] == [1.75, 1.5, -0.5, -0.75]
    finally:
        scorer.close()
