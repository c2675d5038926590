"""What a user lets a resumed run change by word: the values of `headway train --accept-changes`."""

from enum import StrEnum


class Accept(StrEnum):
    """What `--accept-changes` names."""

    REWARD = "reward"
    DATA = "data"
