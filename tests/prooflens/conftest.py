"""Fixtures of the tables of odd inputs."""

from odd_calls import ask, root

__all__ = ["ask", "root"]
