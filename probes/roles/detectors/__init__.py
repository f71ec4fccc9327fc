"""From evidence to tests, a file a family of roles."""
