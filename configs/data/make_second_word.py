"""Makes second_word.jsonl beside it: python configs/data/make_second_word.py

A problem is the word "second" and four different words; the answer is the second of the four. There are 4.3 million
such problems; the file has 2,400 different ones.
"""

import json
import random
from pathlib import Path

WORDS = (
    "apple", "river", "stone", "cloud", "tiger", "bread", "chair", "light", "house", "green", "music", "paper",
    "horse", "water", "night", "plant", "glass", "money", "train", "heart", "sugar", "beach", "dream", "earth",
    "flame", "grape", "honey", "jelly", "knife", "lemon", "mouse", "ocean", "peach", "queen", "robot", "snake",
    "table", "uncle", "voice", "whale", "zebra", "actor", "block", "crown", "dance", "eagle", "fruit",
)  # fmt: skip
SHOWN = ("night", "knife", "earth", "table")
"""The example in the prompt of demo.toml, which is no problem of the file."""


def text() -> str:
    """The file's contents."""
    rng = random.Random(0)
    drawn: dict[tuple[str, ...], None] = {}
    while len(drawn) < 2400:
        words = tuple(rng.sample(WORDS, 4))
        if words != SHOWN:
            drawn[words] = None
    rows = ({"prompt": f"second {' '.join(words)}", "label": words[1]} for words in drawn)
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    Path(__file__).with_name("second_word.jsonl").write_text(text())
