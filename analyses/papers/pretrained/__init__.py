"""Claims about pretrained models, which can be run wherever the user has the model."""
