"""The one error type that users see. It carries its exit code and is caught once, in the command line."""


class HeadwayError(Exception):
    """A problem that the user can act on: what was set, what contradicts it, what to set instead.

    Raise it only for the user's input or machine; our own mistakes raise as they are.
    """

    exit_code = 1


class InputError(HeadwayError):
    """Bad input: a RunSpec, a file, a model folder, a task. Exit code 2.

    `problems` holds every problem found, so that a user mends all of them at once.

    >>> str(InputError("train.lr = -1: must be above 0"))
    'train.lr = -1: must be above 0'
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DoesNotFitError(HeadwayError):
    """The plan's expected peak is over a limit of a pool, so the run does not start. Exit code 3."""

    exit_code = 3


class RewardsFailedError(HeadwayError):
    """Most answers could not be scored, so that there is nothing to learn from. Exit code 6.

    `exit_reason` is what summary.json says of such a run.
    """

    exit_code = 6
    exit_reason = "failed rewards"


class LimitReachedError(HeadwayError):
    """Memory ran out during the run in a way that no smaller micro-batch can mend. Exit code 5."""

    exit_code = 5


class DiskFullError(HeadwayError):
    """A file system, a quota or a limit on a file's size left no room for what a run writes. Exit code 7.

    `exit_reason` is what summary.json says of such a run.
    """

    exit_code = 7
    exit_reason = "full disk"


class StoppedError(HeadwayError):
    """A signal ended the run before there was anything to save. Exit code 128 and the signal's number."""

    exit_code = 130

    def __init__(self, text: str, signal: int) -> None:
        super().__init__(text)
        self.exit_code = 128 + signal
