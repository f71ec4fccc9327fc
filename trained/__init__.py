"""The shipped models, the recipes they were trained by, and the trainer."""
