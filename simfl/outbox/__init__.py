"""What may leave a party because of its rows: a rule that the party applies alone, to every number, in every recipe."""
