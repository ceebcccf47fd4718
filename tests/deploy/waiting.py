"""Waiting for what other processes do. The bounds are generous: on a busy machine a process takes a minute to start."""

import time

LONG = 300.0  # seconds


def within(seconds, happened):
    """Whether it happens in time."""
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        time.sleep(0.1)
    return bool(happened())
