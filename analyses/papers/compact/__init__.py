"""Claims about proofs of trained models' accuracy (`compact`, arXiv 2406.11779)."""
