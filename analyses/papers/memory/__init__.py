"""Claims of `memory` (§1.5): one module a family."""
