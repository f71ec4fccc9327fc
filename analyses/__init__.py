"""The commands, the claims and the report."""
