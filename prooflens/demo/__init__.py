"""The demo: the whole way from a task to a report."""
