"""Speed, accuracy, the paper and the peers: what the figures in README and docs come from."""
