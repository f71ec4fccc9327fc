"""The claims of `template` §2.4, one module per family."""
