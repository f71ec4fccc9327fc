"""What heads and layers do: measurements, which decide nothing."""
