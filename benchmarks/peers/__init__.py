"""SimFL beside its peers, on the same parties: `python -m benchmarks.peers --help`."""
