"""The main job, end to end: from a task to a report."""
