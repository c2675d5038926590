"""Rules as pages: docs/rules/, made by `python -m headway.diagnose.document docs/rules`, and `--explain NAME`."""

import difflib
import sys
from pathlib import Path

from headway.diagnose.causes import Level, table
from headway.diagnose.frameworks import FRAMEWORKS
from headway.diagnose.readers import SIGNS
from headway.diagnose.rules import rules
from headway.diagnose.rules.rule import Rule
from headway.errors import InputError

LEVELS: tuple[Level, ...] = ("mechanism", "cause")


def explained(name: str) -> str:
    """The rule of a name; both where it is a mechanism and a cause. InputError names the nearest ones."""
    found = [page(rules(level)[name]) for level in LEVELS if name in table(level)]
    if not found:
        names = [each for level in LEVELS for each in table(level)]
        near = difflib.get_close_matches(name, names, 3, 0.5)
        hint = f"; nearest are {', '.join(near)}" if near else ""
        raise InputError(
            f"--explain {name}: no mechanism or cause has that name{hint}; docs/rules/README.md lists all"
        )
    return "\n".join(found)


def page(rule: Rule) -> str:
    """One rule in Markdown."""
    name = table(rule.level)[rule.name]
    parts = [f"# {rule.name}", "", f"A {rule.level}, family {name.family}. {name.meaning}", ""]
    for title, text in (
        ("What it sees", rule.sees), ("Why it happens", rule.why), ("How sure", rule.sure),
        ("Looks alike, but is not", rule.look_alikes),
    ):  # fmt: skip
        parts += [f"## {title}", "", text, ""]
    parts += [
        "## Example",
        "",
        "```text",
        rule.example,
        "```",
        "",
        "No example of it:",
        "",
        "```text",
        rule.near_miss,
        "```",
        "",
    ]
    if rule.refuters:
        parts += ["## What speaks against it", "", *(f"- {each}" for each in rule.refuters), ""]
    if rule.advice:
        parts += ["## What to change", "", "| change | effect | risk |", "|---|---|---|"]
        parts += [
            f"| {_where(each.on)}{each.text}{_flags(each.change)} | {each.effect} | {each.risk} |"
            for each in rule.advice
        ] + [""]
    if rule.settle:
        parts += ["## What would settle it", ""]
        for each in rule.settle:
            parts.append(f"- {_where(each.on)}`{each.command}` ({each.where}): {each.line}")
            other = each.instead
            while other is not None:
                parts.append(f"- {_where(other.on) or 'elsewhere: '}`{other.command}` ({other.where}): {other.line}")
                other = other.instead
        parts.append("")
    signs = [sign for sign in SIGNS if sign.kind in rule.ends]
    if signs:
        parts += ["## Its signs", "", *(f"- `{sign.kind}`: {sign.says}" for sign in signs), ""]
    return "\n".join(parts)


PLATFORMS = {
    "kubernetes": "Kubernetes", "docker": "Docker", "slurm": "Slurm", "lsf": "LSF", "pbs": "PBS", "ray": "Ray",
    "nvidia": "NVIDIA", "amd": "AMD", "unmanaged": "without any of these",
}  # fmt: skip
"""The platforms of seen.py, as they are written."""


def _where(platform: str) -> str:
    """Where advice or a question holds, in front of it; nothing where it holds everywhere."""
    return f"{PLATFORMS[platform]}: " if platform else ""


def _flags(change: str) -> str:
    """A link to the flags of a change."""
    return f" ([flags](flags.md#{change}))" if change else ""


def flags_page() -> str:
    """Every change that advice asks for, in each trainer's own flags."""
    parts = [
        "# Changes in each trainer's own flags",
        "",
        "<!-- Made by: .venv/bin/python -m headway.diagnose.document docs/rules -->",
        "",
        "Advice names a change in plain words, with the flag of the trainer that the log or the script shows;",
        "without one where none shows or where it has none. `headway doctor` takes them from diagnose/frameworks.py.",
        "",
    ]
    changes = dict.fromkeys(change for each in FRAMEWORKS.values() for change in each.flags)
    for change in changes:
        parts += [f"## {change}", "", "| trainer | flag |", "|---|---|"]
        for name, framework in FRAMEWORKS.items():
            if framework.flags.get(change):
                parts.append(f"| {name} | {', else '.join(f'`{flag}`' for flag in framework.flags[change])} |")
        parts.append("")
    return "\n".join(parts)


def index() -> str:
    """The list of all rules."""
    parts = [
        "# Rules of `headway doctor`",
        "",
        "<!-- Made by: .venv/bin/python -m headway.diagnose.document docs/rules -->",
        "",
    ]
    parts += [
        "How a process ended (mechanism) and why (cause); one rule each, with what it proves and what only "
        "looks like it. [flags.md](flags.md) has the changes that they advise in each trainer's own flags.",
        "",
    ]
    for level in LEVELS:
        parts += [f"## {level.capitalize()}s", "", "| name | family | meaning |", "|---|---|---|"]
        parts += [
            f"| [{each.name}]({level}-{each.name}.md) | {each.family} | {each.meaning} |"
            for each in table(level).values()
        ]
        parts.append("")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """All pages by file name."""
    found = {"README.md": index(), "flags.md": flags_page()}
    for level in LEVELS:
        found |= {f"{level}-{name}.md": page(rule) for name, rule in rules(level).items()}
    return found


def main() -> None:
    """Write the pages into a folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
