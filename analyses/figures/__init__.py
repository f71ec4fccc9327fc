"""Figures of single experiments: tables in, matplotlib figures out."""
