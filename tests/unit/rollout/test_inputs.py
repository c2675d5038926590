"""What a run reads is looked through before its model is loaded, and nothing heavy is loaded for that."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway.config.load import load
from headway.errors import InputError
from headway.rollout.inputs import check_inputs

SPEC = """
model = {path = "tiny-qwen3", init = "random"}
data = {file = "sums.jsonl", format = "text", max_prompt = 24}
reward = {kind = "exact", extract = "whole"}
rollout = {prompts = 4, samples = 2}
eval = {problems = 4}
"""


@pytest.fixture
def runspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = ({"prompt": f"{a} + 1 =", "label": str(a)} for a in range(20))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text("def score(prompt, answer, label, response):\n    return 1.0\n")
    (tmp_path / "run.toml").write_text(SPEC)
    return tmp_path / "run.toml"


@pytest.mark.parametrize(
    "settings",
    [
        (), ("reward.kind=function", "reward.function=mine:score"), ("data.max_prompt=1",), ("data.format=chat",),
    ],
)  # fmt: skip
def test_what_only_the_tokenizer_can_tell_is_left_open(runspec: Path, settings: tuple[str, ...]) -> None:
    check_inputs(load(runspec, settings))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("rollout.prompts=17",), "there are only 16 training problems"),
        (("data.label_key=lable",), 'set data.label_key = "label"'),
        (("eval.problems=20",), "leaves none for training"),
        (("reward.kind=function", "reward.function=mine:scor"), "mine has no scor"),
        (("reward.kind=function", "reward.function=yours:score"), "yours"),
        (("reward.pattern=(", "reward.extract=pattern"), "is not a regular expression"),
    ],
)
def test_what_a_run_would_refuse_is_refused(runspec: Path, settings: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        check_inputs(load(runspec, settings))


def test_a_label_that_is_no_pattern_is_found(runspec: Path) -> None:
    (runspec.parent / "sums.jsonl").write_text('{"prompt": "a", "label": "("}\n{"prompt": "b", "label": "b"}\n')
    with pytest.raises(InputError, match="regular expression"):
        check_inputs(load(runspec, ("reward.kind=regex", "rollout.prompts=1", "eval.problems=1")))


def test_no_heavy_library_is_loaded_for_it(runspec: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom headway.config.load import load\n"
        "from headway.rollout.inputs import check_inputs\ncheck_inputs(load(Path('run.toml')))\n"
        "print([name for name in ('torch', 'transformers', 'numpy', 'sympy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
