"""What bash itself makes of a script: the command lines that it starts, with every program but bash a stand-in.

Only for scripts of these tests, which call nothing that matters; each runs in an empty folder, with an environment
and a PATH that hold the stand-ins alone.
"""

import os
import shutil
import subprocess
from pathlib import Path

BASH = shutil.which("bash")
NOTED = """#!{bash}
printf '%s\\0' "${{0##*/}}" "$@" >> "$NOTES"
printf '\\1\\0' >> "$NOTES"
"""
SHELLS = {
    "ray": 'while [ $# -gt 0 ] && [ "$1" != "--" ]; do shift; done; shift; [ $# -eq 0 ] || "$@"',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; "$@"',
    "sbatch": "{bash}",
    "nohup": '"$@"',
    "env": 'while [[ "$1" == *=* ]]; do shift; done; "$@"',
}
NOTING = ("python", "python3", "torchrun")
QUIET = ("pkill", "sleep", "sglang", "vllm", "pip", "grep", "mkdir", "nvidia-smi", "rocm-smi")
REAL = (
    "cat",
    "dirname",
    "basename",
    "realpath",
    "seq",
    "tr",
    "wc",
    "expr",
    "tee",
    "date",
    "cut",
    "sed",
    "awk",
    "head",
)


def started(script: Path, folder: Path) -> list[list[str]]:
    """The programs that a script starts, as bash expands their words."""
    assert BASH is not None
    tools, notes = folder / "tools", folder / "notes"
    tools.mkdir()
    notes.touch()
    for name in NOTING:
        (tools / name).write_text(NOTED.format(bash=BASH))
    for name, body in SHELLS.items():
        (tools / name).write_text(f"#!{BASH}\n{body.format(bash=BASH)}\n")
    for name in QUIET:
        (tools / name).write_text(f"#!{BASH}\n[ -t 0 ] || read -r -t 0.01 _ || true\n")
    for path in tools.iterdir():
        path.chmod(0o755)
    for name in REAL:
        os.symlink(str(shutil.which(name)), tools / name)
    os.symlink(BASH, tools / "bash")
    empty = folder / "empty"
    empty.mkdir()
    (empty / "logs").mkdir()
    environment = {"PATH": str(tools), "NOTES": str(notes), "HOME": str(empty)}
    subprocess.run(
        [BASH, str(script)], cwd=script.parent, env=environment, capture_output=True, timeout=60, check=False
    )
    commands = notes.read_bytes().decode().split("\1\0")
    return [command.split("\0")[:-1] for command in commands if command]
