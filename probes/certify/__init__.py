"""Roles as theorems: bounds on a trained model that hold for every input of a domain."""
