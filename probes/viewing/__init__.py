"""What a page of heads shows: rows as text, each head's attention on them, roles, numbers."""
