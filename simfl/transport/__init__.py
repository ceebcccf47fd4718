"""How messages travel between hub and parties. The hub and the parties are the same over every transport."""
