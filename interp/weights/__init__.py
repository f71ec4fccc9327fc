"""What can be read from weights alone: any checkpoint's head weights, circuits, metrics and
nulls."""
