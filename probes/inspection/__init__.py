"""Inspection of pretrained models: tables, figures, and the main findings in sentences."""
