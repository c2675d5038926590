"""Example of a reward function: `reward.function = "rewards_example:close"` in custom-reward.toml."""

import math


def close(prompt: str, answer: str, label: str, response: str) -> float:
    """1 for the right number, less the further it is away, 0 where there is none.

    `answer` is the part of `response` that `reward.extract` finds. Any finite number may be returned, also below 0 or
    above 1.

    >>> close("12 + 7 =", "19", "19", "It is 19."), close("12 + 7 =", "nineteen", "19", "nineteen")
    (1.0, 0.0)
    """
    try:
        distance = abs(float(answer) - float(label))
    except ValueError:
        return 0.0
    return 1.0 if distance == 0 else 0.5 * math.exp(-distance / 10)
