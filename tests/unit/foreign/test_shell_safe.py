"""Reading a script runs nothing, reads nothing but what it sources in its own tree, and comes to an end."""

import ast
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.foreign import shell
from headway.foreign.readers import read_run, settings_of
from headway.foreign.shell import read_script, read_text

MARKING = [
    "touch {mark}",
    "X=$(touch {mark})",
    "X=`touch {mark}`",
    'echo "$(touch {mark})"',
    "bash -c 'touch {mark}'",
    "eval 'touch {mark}'",
    "cat <(touch {mark})",
    "echo x > {mark}",
    "echo x | tee {mark}",
    "bash <<EOF\ntouch {mark}\nEOF",
    "cat <<EOF\n$(touch {mark})\nEOF",
    "A=([$(touch {mark})]=1)",
    "echo ${{A:-$(touch {mark})}}",
    "echo $((A[$(touch {mark})]))",
    "f() {{ touch {mark}; }}; f",
    "trap 'touch {mark}' EXIT",
    "if touch {mark}; then :; fi",
    "source <(echo touch {mark})",
    'python3 -c \'open("{mark}", "w")\'',
    "[ -f x ] || touch {mark}",
    "case $(touch {mark}) in a) ;; esac",
    "for x in $(touch {mark}); do :; done",
    "printf -v X '%s' $(touch {mark})",
    "read X < <(touch {mark})",
]


@pytest.mark.parametrize("text", MARKING)
def test_nothing_is_run(text, tmp_path):
    mark, script = tmp_path / "mark", tmp_path / "run.sh"
    text = text.format(mark=mark)
    script.write_text(f"{text}\npython3 train.py --rollout-batch-size 1 --num-rollout 1 --colocate\n")
    read_run(script)
    assert sorted(os.listdir(tmp_path)) == ["run.sh"]
    subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=20,
        env={"PATH": os.environ["PATH"]},
    )
    marks = [each for each in os.listdir(tmp_path) if each == "mark"]
    assert marks or text.startswith(("A=([", "echo $((A[")), "the script would leave no mark if it were run"


def test_nothing_of_this_machine_s_environment_is_used(monkeypatch):
    monkeypatch.setenv("HEADWAY_TEST_TP", "4")
    words = read_text("run $HEADWAY_TEST_TP $HOME $PATH ~/x").commands[0].argv
    assert [word.text for word in words] == ["run", None, None, None, None]


@pytest.fixture
def tree(tmp_path):
    """A repository with a script in a folder, and files outside of it."""
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    for path in ("scripts/models/m.sh", "scripts/run/near.sh", "lib/up.sh"):
        file = repository / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"X={file.stem}\n")
    (tmp_path / "outside.sh").write_text("X=outside\n")
    os.symlink(tmp_path / "outside.sh", repository / "scripts/run/link.sh")
    os.symlink(tmp_path, repository / "scripts/run/folder")
    return repository / "scripts" / "run" / "run.sh"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("$(dirname $0)/near.sh", "near"),
        ("./near.sh", "near"),
        ("${BASH_SOURCE[0]%/*}/../models/m.sh", "m"),
        ("scripts/models/m.sh", "m"),
        ("../../lib/up.sh", "up"),
        ("/root/elsewhere/scripts/models/m.sh", "m"),
        ("$HOME/repository/lib/up.sh", "up"),
        ("$(cd $(dirname $0)/.. && pwd)/models/m.sh", "m"),
        ("$(dirname $0)/models/m.sh", "m"),  # a script that was copied out of its folder
        ("folder/m.sh", None),
        ("../../../outside.sh", None),
        ("$(dirname $0)/../../../outside.sh", None),
        ("./link.sh", None),
        ("folder/outside.sh", None),
        ("/etc/passwd", None),
        ("$UNSET.sh", None),
        ("../models", None),
    ],
)
def test_only_sourced_files_in_the_script_s_tree_are_read(tree, source, found):
    tree.write_text(f'source "{source}"\nrun $X\n')
    script = read_script(tree)
    assert script.commands[-1].argv[1].text == found
    assert bool(script.unread) is (found is None)
    assert [path.rpartition("/")[2] for path in script.sourced] == ([f"{found}.sh"] if found else [])


def test_a_neighbour_that_two_folders_have_is_neither(tree):
    other = tree.parents[2] / "lib" / "models" / "m.sh"
    other.parent.mkdir()
    other.write_text("X=other\n")
    tree.write_text("source $(dirname $0)/models/m.sh\nrun $X\n")
    assert read_script(tree).commands[-1].argv[1].text is None


def test_a_missing_file_is_named_and_its_arrays_may_hold_anything(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("source models/none.sh\nrun ${ARGS[@]}\n")
    read = read_script(script)
    assert "line 1: source models/none.sh: was not found" in read.unread[0]
    assert read.commands[-1].argv[1].kind == "unread"


ENDLESS = [
    "while true; do A+=x; done",
    "while true; do A=$A$A; A+=x; done",
    "f() { f; }; f",
    "f() { f; f; }; f",
    "for ((;;)); do ((i++)); done",
    "A='${B:-${A}}'; " + "${A:-" * 300 + "x" + "}" * 300,
    "echo " + "$(" * 200 + "x" + ")" * 200,
    "echo $((" + "(" * 3000 + "1" + ")" * 3000 + "))",
    "source $0",
    "for a in {1..999}; do for b in {1..999}; do C+=($a$b); done; done",
    "eval 'eval \"eval x\"'; X='eval \"$X\"'; eval \"$X\"",
    "A=(x); for i in {1..99}; do A+=(\"${A[@]}\"); done; run ${A[@]}",
    "A=1; B=A; for i in {1..9}; do A=$((A**9)); done",
    "printf -v X '%999999999s' x; echo {1..9}{1..9}{1..9}{1..9}{1..9}{1..9}",
    "echo " + "{a,b}" * 60,
    "if x; then " * 400 + "y" + "; fi" * 400,
    "bash -c \"bash -c 'bash -c x'\"; X=\"bash -c '\\$X'\"; export X; eval \"$X\"",
    "A=" + "a" * 60000 + "; echo ${A//a/aa} ${A%%*a*a*a*b}",
    "local -n A=A; A=1; echo $A",
    "[[ " + "a" * 5000 + " =~ (a+)+b ]]",
]  # fmt: skip


@pytest.mark.timeout(60)  # each takes a second at most; without a bound none would end
@pytest.mark.parametrize("text", ENDLESS, ids=range(len(ENDLESS)))
def test_work_is_bounded(text, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"TP=4\n{text}\nrun $TP\n")
    read_script(script)


@pytest.mark.parametrize("data", [b"\0\1\2", b"\xff\xfe\x00x", b"x" * (2 << 20)])
def test_what_is_no_script_is_said(data, tmp_path):
    path = tmp_path / "run.sh"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"run\.sh"):
        read_run(path)


def test_a_launcher_in_python_that_starts_no_trainer_is_refused(tmp_path):
    path = tmp_path / "run.py"
    path.write_text("import os\nos.system('touch mark')\n")
    with pytest.raises(InputError, match="no trainer that is known is started in it"):
        read_run(path)
    assert not (tmp_path / "mark").exists()


TOKENS = st.sampled_from([
    "$", "{", "}", "(", ")", "[", "]", '"', "'", "`", "\\", "\n", " ", "#", ";", "&", "|", "<", ">", "=", "!",
    "*", "@", "%", "/", ":", "-", "+", ",", "~", "A", "x", "1", "if ", "then ", "fi ", "for ", "in ", "do ",
    "done ", "case ", "esac ", ";;", "while ", "f()", "<<E\n", "E\n", "<<<", "[[ ", " ]]", "((", "))", "${A",
    "${A[@]}", "$((", "$(", "eval ", "source ", "local ", "read ", "printf -v A ", "--flag ",
    "python3 train.py --rollout-batch-size ",
])  # fmt: skip


@given(st.lists(TOKENS, max_size=60).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_without_failing(text):
    with suppress(InputError):
        settings_of(read_text(text))


def test_the_package_has_nothing_that_could_run_or_ask_anything():
    package = Path(shell.__file__).parent
    names = set()
    for path in package.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("os."):
                names.add(ast.unparse(node))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("eval", "exec", "open", "compile"):
                names.add(ast.unparse(node.func))
    allowed = {
        "re", "os", "os.path", "os.path.normpath", "posixpath", "time", "math", "itertools", "functools", "bisect",
        "msgspec", "collections", "typing", "pathlib", "headway", "tree_sitter", "tree_sitter_bash",
    }  # fmt: skip
    assert names <= allowed


@pytest.mark.parametrize("loop", ["while true; do x=$((x + 1)); done", "x=0; for ((;;)); do ((x++)); done"])
def test_a_loop_that_does_not_end_is_said(loop):
    assert any("a loop" in text for text in read_text(f"{loop}\nrun").unread)
    assert [command.program for command in read_text(f"{loop}\nrun").commands] == ["run"]


def test_a_loop_in_the_background_or_with_a_way_out_is_no_trouble():
    for loop in ("while true; do date; done &", "(while :; do date; done) &", "while true; do up && break; done"):
        assert not read_text(loop).unread


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("bash near.sh 5", "5"),
        ('TP=2 srun bash -eo pipefail "$(dirname "$0")/near.sh" 5', "5"),
        ("./near.sh 5 &", "5"),
        ("sbatch --nodes 2 near.sh 5", "5"),
        ("bash ../../../outside.sh", None),
        ("bash /nowhere/near.sh", None),
    ],
)
def test_a_script_that_starts_another_is_read_with_it(tree, line, found):
    train = "python3 train.py --num-rollout 1 --rollout-batch-size $1 --colocate"
    for path in (tree.parent / "near.sh", tree.parents[3] / "outside.sh"):
        path.write_text(f"{train}\n")
    tree.write_text(f"{line}\n")
    if found is None:
        with pytest.raises(InputError, match=r"the script .*\.sh: (lies outside|was not found)"):
            read_run(tree)
        return
    run = read_run(tree)
    assert run.settings["rollout_batch"] == int(found)
    assert run.at.file.endswith("near.sh")
    tree.write_text(f"{line}\n{train.replace('$1', '7')}\n")
    assert read_run(tree).settings["rollout_batch"] == 7
