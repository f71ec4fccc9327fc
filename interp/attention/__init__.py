"""Measures of where heads attend: by lag and by kind of key, on given, shuffled and repeated
rows."""
