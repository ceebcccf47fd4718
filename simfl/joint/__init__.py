"""Trees grown by all parties at once, from exact sums: cut points, bins, sums per cell. Pure functions on arrays."""
