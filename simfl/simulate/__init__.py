"""One table played as several parties, and all methods compared on it."""
