"""Speed, measured against what a user would do otherwise."""
