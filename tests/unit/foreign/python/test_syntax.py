"""Single constructs of Python: the value that a run would see, and what stays unknown."""

import pytest

from headway.foreign.python import source
from headway.foreign.python.state import State
from headway.foreign.python.statements import Statements
from headway.foreign.python.values import Either, Scope, Text, Unknown


def names(text: str, *arguments: str, **environment: str) -> dict[str, object]:
    """The variables that a script leaves."""
    run = Statements(State(None, arguments, dict(environment)))
    return run.module(source.parse(text, "t.py"), Scope("t.py")).names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x = 2 * 3 + 2 ** 4 // 3", 11),
        ("x = -(7 % 4) / 2", -1.5),
        ("a, (b, c) = 1, (2, 3)\nx = a + b + c", 6),
        ("n = 'Qwen'\nx = f'{n}/{n.lower()}-{4:02d}B'", "Qwen/qwen-04B"),
        ("x = 'a' if not [] else 'b'", "a"),
        ("x = {'a': [1, 2, 3]}['a'][-1]", 3),
        ("x = {**{'a': 1}, 'a': 2}.get('a')", 2),
        ("import os\nx = os.path.join('a', 'b/', 'c')", "a/b/c"),
        ("from pathlib import Path\nx = str(Path('a') / 'b')", "a/b"),
        ("def f(a, b=2, *c, d=4, **e):\n    return a + b + len(c) + d + len(e)\nx = f(1, 1, 9, 9, d=0, z=1)", 5),
        ("class A:\n    n = 3\n    def f(self):\n        return self.n * self.k\na = A()\na.k = 2\nx = a.f()", 6),
        ("class A:\n    n: int = 3\n    def __post_init__(self):\n        self.n += 1\nx = A(n=5).n", 6),
        ("x = 0\nfor i in range(5):\n    if i == 3:\n        break\n    x += i", 3),
        ("x = [i * 2 for i in (1, 2, 3) if i > 1]", [4, 6]),
        ("try:\n    x = 1\nexcept Exception:\n    print('no')", 1),
        ("x = 1\nif False:\n    x = 2\nelif True:\n    x = 3", 3),
        ("match ('H100', 1):\n    case ('B200', _):\n        x = 1\n    case ('H100', 1 | 2):\n        x = 2", 2),
        ("x = ' '.join(['a', 'b']).split()[0].upper()", "A"),
        ("import re\nx = re.search(r'(\\d+)B', 'Qwen3-8B').group(1)", "8"),
        ("import os\nos.environ['A'] = '3'\nx = int(os.environ['A'])", 3),
        ("x = (y := 4) + y", 8),
        ("x = sorted([3, 1])[0] + max(2, 5) + min([4, 6]) + round(2.6)", 13),
        ("f = lambda n: n + 1\nx = f(2)", 3),
        ("x = isinstance('a', str) and 'a' in ('a', 'b') and 1 < 2 < 3", True),
    ],
)  # fmt: skip
def test_a_value_that_the_script_tells(text, value):
    assert names(text)["x"] == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os\nx = os.environ['RANK']", "line 2: environment variable RANK is not known"),
        ("import torch\nx = torch.cuda.device_count() * 2", "device_count() * 2"),
        ("x = y", "y is set nowhere before"),
        ("x = open('f').read()", ""),
        ("import sys\nx = sys.argv[2]", "is an argument of the command, and is not given"),
        ("x = 10 ** 10 ** 10", "too large a number"),
        ("x = 'a' * 10 ** 8", ""),
        ("x = [0] * 10 ** 9", ""),
        ("def f():\n    return f()\nx = f()", "too deep"),
        ("x = f'{1:>1000000000}'", ""),
        ("x = 1 << 10 ** 9", "too large a number"),
    ],
)
def test_a_value_that_only_a_run_tells_is_unknown(text, why):
    found = names(text)["x"]
    assert isinstance(found, Unknown | Text) or not isinstance(found, int | str | list)
    if why:
        assert why in found.why


def test_both_ways_of_an_open_condition():
    found = names("import load\nx, y = 1, 1\nif load.fast():\n    x = 2\nelse:\n    x = 3\nz = x * 2")
    assert found["x"].options == (2, 3)
    assert found["z"].options == (4, 6)
    assert found["y"] == 1
    assert "depends on `load.fast()`" in found["x"].why


def test_an_object_that_one_way_changes_is_changed_in_one_way():
    text = "import load, t\na = t.Config(n=1)\nb = a\nif load.fast():\n    a.n = 2\nx = b.n"
    assert isinstance(names(text)["x"], Either)


def test_a_way_that_ends_the_script_is_no_way():
    text = "import load\nx = 1\nif load.fast():\n    x = 2\n    raise ValueError\ny = x"
    assert names(text)["y"] == 1


def test_a_function_that_returns_early_in_one_way():
    text = "import load\ndef f():\n    if load.fast():\n        return 1\n    return 2\nx = f()"
    assert names(text)["x"].options == (1, 2)


def test_an_environment_variable_has_its_default_and_the_commands_value():
    text = "import os\nx = int(os.environ.get('N', '4'))\ny = os.environ.get('M') or 'm'"
    assert (names(text)["x"], names(text)["y"]) == (4, "m")
    assert (names(text, N="8", M="k")["x"], names(text, N="8", M="k")["y"]) == (8, "k")


def test_the_number_of_a_commands_words():
    text = "import sys\nx = len(sys.argv) == 2 and sys.argv[1].endswith('.json')"
    assert names(text)["x"] is False
    assert names(text, "a.json")["x"] is True
    assert names(text, "--lr", "1")["x"] is False


def test_text_keeps_what_is_known_around_what_is_not():
    found = names("import os\nx = f\"{os.environ['D']}/Qwen3-4B\" + ' end'")["x"]
    assert found.shown == ".../Qwen3-4B end"


def test_click_and_typer_give_their_parameters():
    click = "import click\nout = []\n@click.command()\n@click.option('--lr', type=float, default=1.0)\n"
    click += "def f(lr):\n    out.append(lr)\nf()"
    assert names(click, "--lr", "2")["out"] == [2.0]
    assert names(click)["out"] == [1.0]
    typer = "import typer\nout = []\ndef f(name: str, n: int = 3):\n    out.append((name, n))\ntyper.run(f)"
    assert names(typer, "a", "--n", "4")["out"] == [("a", 4)]
