"""The papers' constructive proofs, built as models with known mechanisms and error bounds."""
