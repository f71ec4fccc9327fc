"""How it is drawn: figures from tables and arrays, in one style."""
