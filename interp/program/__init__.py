"""A language of programs: text and syntax trees, evaluation on strings and rows, and depth."""
