"""Who learns it: one hooked transformer for every task, and the door to other models."""
