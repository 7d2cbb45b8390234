"""Signals: the first asks to stop, the second interrupts, and so does the end of the grace period."""

from __future__ import annotations

import os
import signal
import time

import pytest

from lakemirror.driver.runtime.signals import stop_requests


def test_a_first_signal_asks_and_a_second_one_interrupts() -> None:
    with stop_requests(None, None) as requests:
        assert not requests.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests.requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_when_the_grace_is_over_the_batch_is_interrupted() -> None:
    with stop_requests(None, 0.5) as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests.requested()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)


def test_nothing_of_it_is_left_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_requests(None, 0.5):
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.7)
    assert signal.getsignal(signal.SIGTERM) == before
