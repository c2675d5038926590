"""What an evaluation says of the answers, under the names that are shown."""

from collections.abc import Mapping


def scores(result: Mapping[str, float]) -> dict[str, float]:
    """The share of right answers, the mean reward where that is another number or there is no such share, pass@k.

    >>> scores({"reward": 0.5, "correct": 0.5, "pass@4": 0.75, "problems": 200.0})
    {'correct': 0.5, 'pass@4': 0.75}
    >>> scores({"reward": 0.62, "correct": 0.5}), scores({"reward": -0.3})
    ({'correct': 0.5, 'reward': 0.62}, {'reward': -0.3})
    """
    names = ["correct"] if "correct" in result else []
    if "reward" in result and result["reward"] != result.get("correct"):
        names.append("reward")
    return {name: result[name] for name in [*names, *(each for each in result if each.startswith("pass@"))]}
