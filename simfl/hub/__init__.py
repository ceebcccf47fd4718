"""The hub: asks, adds up, gives out. It never sees a row."""

from simfl.hub.training import *  # noqa: F403
