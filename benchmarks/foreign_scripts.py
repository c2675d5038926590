"""How well other systems' launch scripts are read.

    python benchmarks/foreign_scripts.py DIR [--truth FILE.jsonl] [--json]

Every *.sh below DIR is read, none is run. With a truth file (lines of `{path, truth: {key: value or null}, derived:
{key: value that is right as well}, unknowable: [keys]}`, paths relative to the file or to DIR) each key counts as
right, unknown or wrong. A key that cannot be known is right when it is said to be unknown, wrong when it has a value.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import InputError
from headway.foreign.found import Found
from headway.foreign.readers import read_run

ENDINGS = (".sh", ".bash", ".py")


@dataclass
class Read:
    """One file: its settings, or why there are none."""

    path: Path
    found: Found | None
    problem: str
    seconds: float


@dataclass
class Score:
    """How the keys of a truth file came out."""

    right: int = 0
    unknown: int = 0
    wrong: int = 0
    keys: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.right + self.unknown + self.wrong

    def as_dict(self) -> dict[str, Any]:
        """Shares of all keys, and each that was not right."""
        share = {name: round(getattr(self, name) / max(self.total, 1), 4) for name in ("right", "unknown", "wrong")}
        return {"keys": self.total, **share, "wrong_keys": self.wrong, "not_right": self.rows}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.truth is not None:
        rows = [json.loads(line) for line in options.truth.read_text().splitlines() if line.strip()]
        paths = [_place(row["path"], options.truth.parent, options.folder) for row in rows]
        reads = [read(path, options.folder) for path in paths]
        score = judge(zip(rows, reads, strict=True))
    else:
        reads = [read(path, options.folder) for path in sorted(_scripts(options.folder))]
        score = None
    if options.json:
        print(json.dumps({"scripts": [_row(each) for each in reads], "score": score and score.as_dict()}, indent=1))
    else:
        _show(reads, score)
    return 0


def _place(path: str, *folders: Path) -> Path:
    """Where a path of the truth file is."""
    places = [folder / path for folder in (*folders, Path())]
    return next((place for place in places if place.is_file()), places[0])


def _scripts(folder: Path) -> Iterator[Path]:
    """The scripts below a folder, and the launchers in Python that only look like one."""
    for path in folder.rglob("*"):
        if path.suffix not in ENDINGS or not path.is_file() or ".git" in path.parts:
            continue
        if path.suffix != ".py" or path.name.startswith("run") or "launch" in path.name:
            yield path


def read(path: Path, folder: Path) -> Read:
    """One script as the planner reads it, nothing run."""
    start = time.perf_counter()
    found, problem = None, ""
    try:
        found = read_run(path, folder if folder.resolve() in path.resolve().parents else None)
    except InputError as error:
        problem = str(error)
    return Read(path, found, problem, time.perf_counter() - start)


def judge(pairs: Iterator[tuple[dict[str, Any], Read]]) -> Score:
    """Each key of each row as right, unknown or wrong."""
    score = Score()
    for row, each in pairs:
        unknowable = set(row.get("unknowable", ()))
        for key in dict.fromkeys((*row.get("truth", {}), *row.get("unknowable", ()))):
            verdict, said = _verdict(key, row, each.found, key in unknowable)
            setattr(score, verdict, getattr(score, verdict) + 1)
            if verdict != "right":
                score.keys[f"{verdict} {key}"] += 1
                expected = "unknowable" if key in unknowable else row["truth"].get(key)
                score.rows.append({"path": row["path"], "key": key, "is": verdict, "said": said, "truth": expected})
    return score


def _verdict(key: str, row: dict[str, Any], found: Found | None, unknowable: bool) -> tuple[str, Any]:
    if found is None:
        return ("right" if unknowable else "unknown"), "not read"
    if key in found.unknown or key not in found.settings:
        return ("right" if unknowable else "unknown"), f"unknown: {found.unknown.get(key, 'not told')}"
    said = found.settings[key]
    also = row.get("derived", {})
    accepted = ([row["truth"][key]] if key in row.get("truth", {}) else []) + ([also[key]] if key in also else [])
    return ("right" if any(_same(key, said, value) for value in accepted) else "wrong"), said


def _same(key: str, said: object, value: object) -> bool:
    if isinstance(said, bool) or isinstance(value, bool) or said is None or value is None:
        return said is value
    if isinstance(said, int | float) and isinstance(value, int | float):
        return abs(said - value) <= 1e-9 * max(abs(said), abs(value))
    told, truth = str(said).lower(), str(value).lower()
    if key == "model_name":
        told, truth = (text.rstrip("/").rpartition("/")[2] for text in (told, truth))
    return told == truth


def _row(each: Read) -> dict[str, Any]:
    found = each.found
    about = {"path": str(each.path), "ms": round(each.seconds * 1000, 1)}
    if found is None:
        return {**about, "problem": each.problem}
    return {
        **about, "system": found.system, "settings": found.settings, "derived": found.derived,
        "unknown": found.unknown, "unread": found.unread, "notes": found.notes,
    }  # fmt: skip


def _show(reads: list[Read], score: Score | None) -> None:
    for each in reads:
        if each.found is None:
            print(f"{each.path}: not read: {each.problem}")
            continue
        about = f"{len(each.found.settings)} settings, {len(each.found.unknown)} unknown"
        print(f"{each.path}: {each.found.system}, {about}, {each.seconds * 1000:.0f} ms")
        for text in (*each.found.unread, *each.found.notes):
            print(f"    {text}")
    if score is not None:
        for row in score.rows:
            print(f"{row['is']:8} {row['path']} {row['key']}: said {row['said']!r}, is {row['truth']!r}")
        shares = score.as_dict()
        told = ", ".join(f"{shares[name]:.2%} {name}" for name in ("right", "unknown", "wrong"))
        print(f"{score.total} keys: {told}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
