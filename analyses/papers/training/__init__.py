"""Does training find the proof? The share of seeds whose trained model works as the proof does."""
