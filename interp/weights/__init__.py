"""Analyses of weights alone: head weights of any checkpoint, QK and OV circuits, metrics, nulls."""
