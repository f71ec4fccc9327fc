"""Claims about pretrained models: they run wherever the user has the model."""
