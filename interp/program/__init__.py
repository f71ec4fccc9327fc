"""One language of programs: as text and as trees, run on strings and on rows, and their depth."""
