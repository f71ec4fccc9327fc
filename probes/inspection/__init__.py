"""Inspecting pretrained models: tables, figures and what stands out in words."""
