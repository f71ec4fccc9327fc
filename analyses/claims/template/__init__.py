"""The claims of `template` (SCIENCE §2.4), one module a family."""
