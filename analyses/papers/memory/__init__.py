"""The claims of `memory` (§1.5), one module per family."""
