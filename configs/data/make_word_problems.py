"""Makes word_problems.jsonl and word_problems_eval.jsonl beside it: python configs/data/make_word_problems.py"""

import json
import random
from collections.abc import Callable
from pathlib import Path

Problem = tuple[str, int]

NAMES = ("Ada", "Ben", "Chen", "Dina", "Emil", "Fatou", "Goran", "Hana")
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pens", "shells", "stamps")


def more(rng: random.Random) -> Problem:
    name, thing, a, b = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 20), rng.randint(2, 20)
    return f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?", a + b


def fewer(rng: random.Random) -> Problem:
    name, thing, a, b = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 20), rng.randint(2, 20)
    return f"{name} has {a + b} {thing} and gives {b} away. How many {thing} does {name} have left?", a


def boxes(rng: random.Random) -> Problem:
    thing, a, b = rng.choice(THINGS), rng.randint(2, 9), rng.randint(2, 9)
    return f"There are {a} boxes with {b} {thing} in each. How many {thing} are there in all?", a * b


def shared(rng: random.Random) -> Problem:
    thing, a, b = rng.choice(THINGS), rng.randint(2, 9), rng.randint(2, 6)
    return f"{a * b} {thing} are shared equally among {b} friends. How many {thing} does each friend get?", a


def compared(rng: random.Random) -> Problem:
    (first, second), thing = rng.sample(NAMES, 2), rng.choice(THINGS)
    a, b = rng.randint(2, 20), rng.randint(2, 20)
    text = f"{first} has {a + b} {thing}. {second} has {a} {thing}. How many more {thing} does {first} have?"
    return text, b


KINDS: tuple[Callable[[random.Random], Problem], ...] = (more, fewer, boxes, shared, compared)


def distinct(count: int, seed: int) -> list[Problem]:
    """Problems of all kinds in turn, no text twice."""
    rng, found = random.Random(seed), dict[str, int]()
    while len(found) < count:
        text, answer = KINDS[len(found) % len(KINDS)](rng)
        found.setdefault(text, answer)
    return list(found.items())


def line(problem: Problem) -> str:
    text, answer = problem
    return json.dumps({"prompt": [{"role": "user", "content": text}], "label": str(answer)}) + "\n"


def files() -> dict[str, str]:
    """Name and content of each file."""
    problems = distinct(250, seed=1)
    parts = {"word_problems.jsonl": problems[:200], "word_problems_eval.jsonl": problems[200:]}
    return {name: "".join(map(line, part)) for name, part in parts.items()}


if __name__ == "__main__":
    for name, content in files().items():
        (Path(__file__).parent / name).write_text(content)
