"""The audit: what would leave a party, attacked for real on its own rows."""
