"""What hangs on the machine or on who runs the script is unknown, with the reason; everything else stays known."""

import pytest

from headway.foreign.shell import read_text
from headway.foreign.shell.values import Gap, Word, reasons, worlds


def line(text):
    """The words of the last command, in every world; None for a word that is not known."""
    argv = read_text(text).commands[-1].argv
    return [[item.text if isinstance(item, Word) else item for item in world] for world in worlds(argv)]


def why(text):
    return "; ".join(reasons(read_text(text).commands[-1].argv))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("run --tp $TP", "variable TP is not set in the script"),
        ("run --tp $((TP * 2))", "variable TP is not set in the script"),
        ("A=$TP; B=x$A; run $B", "variable TP is not set in the script"),
        ("run $1", "argument $1 is not given in the script"),
        ("run ${TP:?needed}", "variable TP must be set by whoever runs the script: needed"),
        ("run ${HOME:-/root}/x", "variable HOME is the machine's"),
        ("run $(nvidia-smi -L | wc -l)", "asks the machine: nvidia-smi -L"),
        ("N=$(nvidia-smi -L | wc -l); run ${N:-8}", "asks the machine: nvidia-smi -L"),
        ("if [ -d /data ]; then A=1; else A=2; fi; run $A", "asks the machine: [ -d /data ] (1 or 2)"),
        ("source missing.sh; run ${X[@]}", "variable X is not set in the script, nor was missing.sh read"),
        ('if [ -z "$BIG" ]; then TP=4; else TP=8; fi; run $TP', "variable BIG is not set in the script (4 or 8)"),
        ("run a/$$_$TP", "$$ is known only when it runs; variable TP is not set in the script"),
        ("run $?", "$? is known only when it runs"),
        ("run $(pwd)", "the folder that the script is started in is not known"),
        ("read -r A < file; run $A", "asks the machine: < file"),
        ("for f in $(ls); do A=$f; done; run $A", "asks the machine: ls"),
    ],
)
def test_the_reason_is_told(text, reason):
    assert reason in why(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run ${TP:-4} ${PP:-${QQ:-2}}", ["run", "4", "2"]),
        ('if [ -z "$CKPT" ]; then CKPT=/m; fi; run $CKPT', ["run", "/m"]),
        ('[ -n "$CKPT" ] || CKPT=/m; run $CKPT', ["run", "/m"]),
        ('if [ "$CKPT" = "" ]; then CKPT=/m; fi; run $CKPT', ["run", "/m"]),
        ('TP=4; if [ -n "$1" ]; then TP=$1; fi; run $TP', ["run", "4"]),
        ('if [ -z "$CKPT" ]; then P=/m; else P=$CKPT/x; fi; run $P', ["run", "/m"]),
        ('case "$SIZE" in "") SIZE=4b;; esac; run $SIZE', ["run", "4b"]),
        ("while [[ $# -gt 0 ]]; do TP=$2; shift; done; run ${TP:-1}", ["run", "1"]),
        ("if [ $# -lt 2 ]; then echo usage; exit 1; fi; run ${1:-a}", ["run", "a"]),
        ('if [ -z "$KEY" ]; then exit 1; fi; run a', ["run", "a"]),
        ("usage() { echo; exit 2; }; [ -f x ] || usage; run a", ["run", "a"]),
        ("command -v ray || exit 1; run a", ["run", "a"]),
        (
            'if [ -d /x ]; then A=1; B="two words"; else A=1; B="two words"; fi; run $A "$B"',
            ["run", "1", "two words"],
        ),
        ("while ! ray status; do sleep 5; done; run a", ["run", "a"]),
        ("while true; do N=$(probe); if [ $N -ge 8 ]; then break; fi; sleep 1; done; run a", ["run", "a"]),
        ("mkdir -p x && A=1; run $A", ["run", "1"]),
    ],
)
def test_what_does_not_hang_on_it_is_known(text, words):
    assert line(text) == [words]


def test_an_open_branch_makes_worlds_that_share_the_rest():
    text = 'A=(--a 1)\nif [ -d /x ]; then A+=(--b 2); else A+=(--b 3 --c); fi\nA+=(--d)\nrun "${A[@]}"'
    assert line(text) == [["run", "--a", "1", "--b", "2", "--d"], ["run", "--a", "1", "--b", "3", "--c", "--d"]]


def test_a_branch_that_ends_the_script_is_not_the_one_that_is_meant():
    text = "case $M in a) X=1;; b) X=1; Y=2;; *) echo bad; exit 1;; esac\nrun $X"
    assert line(text) == [["run", "1"]]


def test_commands_in_open_branches_say_what_they_hang_on():
    first, second = read_text("if [ -d /x ]; then run a; fi\nrun b").commands[-2:]
    assert first.when == ("asks the machine: [ -d /x ]",)
    assert second.when == ()


def test_a_loop_of_unknown_length_leaves_a_gap():
    text = "A=(x)\nfor f in $(ls); do A+=($f); done\nrun ${A[@]} y"
    (world,) = line(text)
    assert [world[1], world[-1]] == ["x", "y"]
    assert isinstance(world[2], Gap)


def test_the_end_of_a_path_is_known_where_its_folder_is_not():
    word = read_text("run $(basename $ROOT/models/Qwen3-4B/) ${ROOT##*/} $ROOT/a").commands[-1].argv
    assert word[1].text == "Qwen3-4B"
    assert word[3].shown == "${ROOT}/a"


def test_what_two_branches_return_differently():
    text = "f() { if [ -d /x ]; then A=1; return; fi; A=2; }\nA=0\nf\nrun $A"
    assert "(1 or 2)" in why(text) or "(2 or 1)" in why(text)


def test_each_word_knows_where_it_is_written(tmp_path):
    (tmp_path / "model.sh").write_text("MODEL_ARGS=(\n  --layers 4\n)\n")
    script = tmp_path / "run.sh"
    script.write_text(
        'source "$(dirname "$0")/model.sh"\nARGS=(--tp 2\n  --pp 1)\nrun "${MODEL_ARGS[@]}" ${ARGS[@]}\n'
    )
    from headway.foreign.shell import read_script

    command = read_script(script).commands[-1]
    places = {word.text: (word.at.file.rpartition("/")[2], word.at.line) for word in command.argv}
    assert places["4"] == ("model.sh", 2)
    assert places["2"] == ("run.sh", 2)
    assert places["--pp"] == ("run.sh", 3)
    text = script.read_bytes()
    assert {text[word.at.start : word.at.end].decode() for word in command.argv[3:]} == {"--tp", "2", "--pp", "1"}


@pytest.mark.parametrize(
    "text",
    [
        "python3 train.py --colocate\n   --num-layers 36",
        "ARGS=(--num-layers 36); python3 train.py --size $((4 * 512))\n ${ARGS[@]} --colocate",
        "python3 -m verl.trainer.main_ppo a.b=pow \\  # a remark\n  data.train_batch_size=8",
    ],
)
def test_a_line_that_the_command_before_it_does_not_reach_is_said(text):
    assert ["no backslash ends the line before" in each for each in read_text(text).unread] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "python3 train.py --colocate \\\n   --num-layers 36",
        "A.B=2 run\nX=1\n./run.sh --num-layers 36",
        'ARGS="--num-layers 36"; python3 train.py $ARGS',
    ],
)
def test_a_whole_command_is_no_such_line(text):
    assert not read_text(text).unread


@pytest.mark.parametrize("test", ['[[ "$1" != "" ]]', '[ -n "$1" ]', '! [ -z "$1" ]', "[ $# -gt 0 ]"])
def test_a_loop_over_arguments_that_are_not_there_is_not_entered(test):
    text = f'A=1\nwhile {test}; do case $1 in --a) A="$2"; shift;; esac; shift; done\nrun $A'
    assert line(text) == [["run", "1"]]


def test_an_argument_itself_stays_unknown():
    assert line('A=1\nif [ -n "$1" ]; then A=$1; fi\nrun $A')[0][1] != "", "an if is not a loop over arguments"
    assert why("while [ $1 != x ]; do A=$1; shift; done; run $1") == "argument $1 is not given in the script"


def test_a_comment_in_backquotes_among_words_is_no_word():
    assert line("run --a 1 \\\n  `# of the model` \\\n  --b 2") == [["run", "--a", "1", "--b", "2"]]


def test_a_command_in_backquotes_is_one():
    assert line("run `echo a#b` --b 2") == [["run", "a#b", "--b", "2"]]
