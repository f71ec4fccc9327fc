"""The browser of these tests."""

from chromium import browser

__all__ = ["browser"]
