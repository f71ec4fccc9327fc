"""Tasks with known latents, for models to learn."""
