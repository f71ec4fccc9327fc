"""C-RASP programs compiled to transformers (`depth` §3.3), and read back from their weights."""
