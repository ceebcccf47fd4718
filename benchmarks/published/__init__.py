"""Tables that others published, with SimFL beside them: `python -m benchmarks.published --help`."""
