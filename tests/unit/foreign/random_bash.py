"""Scripts of bash made at random of what launch scripts are made of: every statement is valid and runs no program."""

from random import Random

VARIABLES, ARRAYS = "ABCD", "XY"
TEXTS = ("a", "b2", "qwen3-4B", "/m/x.y", "4", "16", "--tp", "a-b-c", "x.tar.gz", "", "0")
EXPANSIONS = (
    "${V}", "${V:-d}", "${V:-${B}}", "${V:-x y}", "${V:+p}", "${V-u}", "${V%.*}", "${V%%-*}", "${V#*-}", "${V##*/}",
    "${V/-/_}", "${V//[ab]/z}", "${#V}", "${V^^}", "${V:1:2}", "${R[@]}", "${R[0]-}", "${R[-1]:-n}", "${#R[@]}",
    "${R[*]}", "${R[@]/#/p}", "$((M))", "$(echo T ${V})", '$(printf "%s," "${R[@]}")', "pre${V}post",
)  # fmt: skip
NUMBERS = (
    "1+2", "N*2", "(N+1)*3", "N%3", "N>2?5:6", "N<<1", "-N", "N==4", "N++", "N**2/3", "2*(N-1)%7", "N&3|8", "~N",
)  # fmt: skip
CONDITIONS = (
    '[ "${V}" = T ]', "[[ ${V} == a* ]]", "[[ ${V} != *B ]]", "[[ ${V} == [0-9]* ]]", '[[ -n "${V}" && $N -gt 3 ]]',
    "(( M ))", "[ $N -le 5 ]", '! [ -z "${R[*]}" ]', "[[ $N =~ ^[0-3]+$ || -z ${V} ]]", "true", "false",
)  # fmt: skip
STATEMENTS = (
    "V=W", "V=W", "V+=W", "R=(W W)", "R=()", "R+=(W # word\n #--x 1\n W)", "N=$((M))", "R[1]=W", "Q && V=T",
    "Q || R+=(W)", "A=T B=T", "f W W", "printf -v V '%s-%s' W W", "read -r V C <<< W", "unset 'R[0]'",
    "R=(\"${R[@]:1}\")",
    "if Q; then\nS\nelif Q; then\nS\nS\nelse\nS\nfi", "for v in W W; do\nS\nR+=(\"$v\")\ndone",
    "case W in\n a*|4) S ;;\n *B|x) S ;;\n *) S ;;\nesac", "for ((i=0;i<3;i++)); do R+=(\"$i\"); S\ndone",
    "while [ $N -gt 0 ]; do N=$((N-1)); R+=($N); [ $N -lt 3 ] && break\ndone",
)  # fmt: skip
BEGINNING = """\
A=a
B=b2
C=x.y
D=
N=4
X=(p 'q r')
Y=()
f() { local A=${1:-} D; N=$((N+1)); X+=("$A" "${2-}"); [ $N -gt 9 ] && return; C=$A; shift; B=${1-}; }
"""
END = 'python3 train.py "$A" "$B" "$C" "$D" $N "${X[@]}" ${Y[@]} W W\n'


def script(seed: int) -> str:
    """A random script that starts one program."""
    rng = Random(seed)
    body = [filled(rng.choice(STATEMENTS), rng) for _ in range(rng.randrange(3, 9))]
    return "\n".join([BEGINNING, *body, filled(END, rng)])


def filled(pattern: str, rng: Random, depth: int = 0) -> str:
    """A pattern with its capital letters put in: variable, array, text, number, word, condition, statement."""
    found = ""
    for place, char in enumerate(pattern):
        alone = not pattern[place - 1 : place].isalnum() and not pattern[place + 1 : place + 2].isalnum()
        found += _part(char, rng, depth) if alone and char in "VRTMWQS" else char
    return found


def _part(char: str, rng: Random, depth: int) -> str:
    if char == "V":
        return rng.choice(VARIABLES)
    if char == "R":
        return rng.choice(ARRAYS)
    if char == "T":
        text = rng.choice(TEXTS)
        return rng.choice((f"'{text}'", f'"{text}"', text or "''"))
    if char == "M":
        return rng.choice(NUMBERS)
    if char == "Q":
        return filled(rng.choice(CONDITIONS), rng, depth)
    if char == "S":
        return filled(rng.choice(STATEMENTS if depth < 2 else STATEMENTS[:9]), rng, depth + 1)
    if rng.random() < 0.3:
        return _part("T", rng, depth)
    inner = filled(rng.choice(EXPANSIONS), rng, depth)
    return rng.choice((inner, f'"{inner}"', f'"{inner}"', f"x{inner}", f'"a {inner} b"'))
