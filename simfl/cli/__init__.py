"""The command line, in files by user: data scientist (simulate, models), auditor (audit), operator (deploy).

The commands import what they need when they run: `simfl --help` loads no NumPy.
"""

from simfl.cli.app import app, main

__all__ = ["app", "main"]
