"""Scripts are untrusted: nothing is run, nothing outside the tree is read, and no text makes the reader fail."""

import ast
import json
import random
from copy import deepcopy
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.foreign.python import read_program

DATA = Path(__file__).parents[3] / "data" / "python"
SCRIPTS = sorted(DATA.glob("*.py"))
TRAINS = "from trl import GRPOTrainer\nGRPOTrainer('Qwen/Qwen3-0.6B', reward_funcs=[len]).train()\n"


def tried(path: Path, text: str) -> None:
    """Read a text; it may be refused, and nothing else. No test may take long, whatever it says."""
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    begun = monotonic()
    try:
        found = read_program(path)
        assert found.system in ("trl", "hf", "unsloth", "miles", "slime", "verl", "openrlhf", "megatron")
    except InputError:
        pass
    assert monotonic() - begun < 20


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    text = f"import os, subprocess\nos.system('touch {mark}')\nsubprocess.run(['touch', '{mark}'])\n"
    text += f"open('{mark}', 'w')\n"
    tried(tmp_path / "t.py", text + f"exec('open(\"{mark}\", \"w\")')\neval('1')\n__import__('os')\n" + TRAINS)
    assert not mark.exists()


def test_no_module_outside_the_tree_is_followed(tmp_path):
    root = tmp_path / "a" / "b" / "c" / "d"
    root.mkdir(parents=True)
    (root / ".git").mkdir()
    (tmp_path / "outside.py").write_text("ROWS = 64\n")
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    script = root / "t.py"
    script.write_text(
        "from link import ROWS\nfrom trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(per_device_train_batch_size=ROWS)\n"
        "GRPOTrainer('Qwen/Qwen3-0.6B', reward_funcs=[len], args=args).train()\n"
    )
    assert read_program(script).value("micro_batch") is None
    (root / "link.py").unlink()
    (root / "link.py").write_text("ROWS = 64\n")
    assert read_program(script).value("micro_batch") == 64


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "(" * 400 + "1" + ")" * 400,
        "x = " + "[" * 150 + "]" * 150,
        "x = " + "not " * 5000 + "1",
        "x = " + " + ".join("1" * 4 for _ in range(3000)),
        "def f(n):\n    return f(n + 1) + f(n + 2)\nf(0)\n" + TRAINS,
        "x = ['a' * 1000] * 1000\nfor a in x:\n    for b in x:\n        x = x + [a + b]\n" + TRAINS,
        "x = 'a'\nfor i in range(60):\n    x = x + x\n" + TRAINS,
        "x = [1]\nfor i in range(60):\n    x = x + x\n" + TRAINS,
        "x = {}\nx['x'] = x\ny = [x]\ny.append(y)\nif u:\n    x['z'] = y\n" + TRAINS,
        "\n".join(f"if load{i}():\n    a{i} = {i}\nelse:\n    a{i} = -{i}" for i in range(400)) + "\n" + TRAINS,
        "while True:\n    pass\n" + TRAINS,
        "x = 9 ** 9 ** 9\ny = 1 << 99999999\nz = int('9' * 100000)\n" + TRAINS,
        "class A:\n    @property\n    def f(self):\n        return self.f\nx = A().f\n" + TRAINS,
        "x = f'{1:{2:{3}}}'\ny = '%1000000000d' % 1\nz = '{:>999999999}'.format(1)\n" + TRAINS,
        "import t\nfrom . import t\nfrom .. import x\n" + TRAINS,
        "\0",
        "x = '\\N{LATIN'",
        "\ufeff" + TRAINS,
    ],
)
def test_bombs(tmp_path, text):
    tried(tmp_path / "t.py", text)


def test_what_is_no_python_is_refused_with_its_line(tmp_path):
    path = tmp_path / "t.py"
    path.write_text("x = 1\nfrom trl import (\n")
    with pytest.raises(InputError, match=r"t\.py line 2: is no Python 3"):
        read_program(path)
    path.write_text("print 'python 2'\n")
    with pytest.raises(InputError, match="line 1: is no Python 3"):
        read_program(path)


def test_quotes_of_a_newer_python_cost_only_their_own_text(tmp_path):
    path = tmp_path / "t.py"
    path.write_text("d = {'a': 1}\nprint(f\"{d[\"a\"]} and {d['a']}\")\n" + TRAINS)
    assert read_program(path).value("model_name") == "Qwen3-0.6B"


def test_dots_for_further_arguments_are_left_out(tmp_path):
    path = tmp_path / "t.py"
    path.write_text("def f():\n    ...\n" + TRAINS.replace("reward_funcs=[len])", "reward_funcs=[len],\n    ...\n)"))
    assert read_program(path).value("model_name") == "Qwen3-0.6B"


@pytest.mark.parametrize("text", ["[]", "{}", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "{", "[" * 99999])
def test_what_is_no_notebook_is_refused(tmp_path, text):
    path = tmp_path / "t.ipynb"
    path.write_text(text)
    with pytest.raises(InputError):
        read_program(path)


def test_a_notebooks_cells_may_be_text_or_lines(tmp_path):
    path = tmp_path / "t.ipynb"
    for source in (TRAINS, TRAINS.splitlines(keepends=True)):
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
        assert read_program(path).value("model_name") == "Qwen3-0.6B"


def test_files_that_are_too_large_are_refused(tmp_path):
    path = tmp_path / "t.py"
    path.write_text("# " + "x" * (3 << 20) + "\n" + TRAINS)
    with pytest.raises(InputError, match="larger than 2 MiB"):
        read_program(path)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_text(tmp_path_factory, text):
    tried(tmp_path_factory.mktemp("any") / "t.py", text)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_scripts_changed_at_random(tmp_path_factory, seed):
    tried(tmp_path_factory.mktemp("changed") / "t.py", changed(random.Random(seed)))


def changed(luck: random.Random) -> str:
    """A script with a few nodes of its syntax tree exchanged for others of it, or for values that fit nowhere."""
    tree = ast.parse(luck.choice(SCRIPTS).read_text())
    other = ast.parse(luck.choice(SCRIPTS).read_text())
    pool = [node for node in ast.walk(other) if isinstance(node, ast.expr)]
    odd = [ast.parse(text, mode="eval").body for text in ODD]
    for _ in range(luck.randint(1, 12)):
        node = luck.choice(list(ast.walk(tree)))
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and luck.random() < 0.5 and name not in ("target", "optional_vars"):
                setattr(node, name, deepcopy(luck.choice([*pool, *odd])))
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt) and luck.random() < 0.7:
                luck.shuffle(value)
                value.append(deepcopy(luck.choice(value)))
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr) and name in ("args", "elts"):
                value[luck.randrange(len(value))] = deepcopy(luck.choice([*pool, *odd]))
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return TRAINS


ODD = (
    "None", "...", "[]", "{}", "()", "-1", "1e309", "'x' * 99", "lambda: 0", "u", "u.v", "u[0]", "u()", "not u",
    "[u, 1]", "{'a': u}", "u if v else w", "f'{u}'", "{**u}", "f(*u, **v)", "b'x'", "1j", "True", "range(3)", "u < v",
    "[i for i in u]", "(yield)", "u or v", "u and 1", "len", "dict(a=u)", "print(u)", "{1: 2}", "(u := 3)",
)  # fmt: skip
