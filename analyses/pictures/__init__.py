"""Pictures of the README, drawn from shipped models."""
