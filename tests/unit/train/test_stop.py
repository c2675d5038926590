"""Signals that ask a run to stop."""

import os
import signal

import pytest

from headway.train.stop import Stop, StopRequested, on_signals


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_request_and_the_handlers_come_back(sent: signal.Signals) -> None:
    stop, before = Stop(), signal.getsignal(sent)
    with on_signals(stop):
        os.kill(os.getpid(), sent)
        with pytest.raises(StopRequested, match=sent.name):
            stop.check()
    assert stop.signal == sent
    assert signal.getsignal(sent) is before


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with on_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
            stop.check()
    finally:
        signal.signal(signal.SIGHUP, before)
