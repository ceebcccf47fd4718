"""What is known of a run, and the page that shows it."""
