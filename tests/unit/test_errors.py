"""Errors keep what the command line needs: every problem, and one text."""

from headway.errors import HeadwayError, InputError


def test_every_problem_is_kept_and_is_in_the_text():
    error = InputError("train.lr = -1: must be at least 0", "data.file: no such file")
    assert error.problems == ("train.lr = -1: must be at least 0", "data.file: no such file")
    assert str(error).splitlines() == list(error.problems)


def test_a_command_can_tell_the_errors_apart_by_their_exit_codes():
    kinds = [HeadwayError, *(kind for kind in HeadwayError.__subclasses__() if kind.__module__ == "headway.errors")]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
