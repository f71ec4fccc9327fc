"""What it costs to represent a lag or a kernel as a sum of heads."""
