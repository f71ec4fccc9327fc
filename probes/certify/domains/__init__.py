"""What a theorem is about: every input of a task's rows, and the right answer to each."""
