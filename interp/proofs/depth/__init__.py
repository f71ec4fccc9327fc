"""C-RASP programs compiled to transformers (`depth` §3.3)."""
