"""How a run is watched: names of hooks and their sites, capture, conformance, TransformerLens."""
