"""How the shipped models came to be, and the models."""
