"""Where activations live: sealed HDF5 parts, a manifest and an index."""
