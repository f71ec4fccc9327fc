"""C-RASP programs as transformers (`depth` §3.3)."""
