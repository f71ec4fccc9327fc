"""Statistics: nulls, p-values, false discovery, bootstrap intervals, head tables."""
