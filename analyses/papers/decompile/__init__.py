"""Claims about programs found in models that others trained."""
