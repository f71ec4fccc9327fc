"""What is to be learned: tasks with known latents."""
