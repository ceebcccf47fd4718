"""The tables, figures and theorems of the paper, measured again: `python -m benchmarks.paper --help`."""
