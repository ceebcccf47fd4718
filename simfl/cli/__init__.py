"""The command line."""

from simfl.cli.app import main

__all__ = ["main"]
