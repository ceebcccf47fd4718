"""What protects a party: the condition on the number of hashes, and sums that can be added blindly."""
