"""The browser in which the report of claims is opened."""

from chromium import browser

__all__ = ["browser"]
