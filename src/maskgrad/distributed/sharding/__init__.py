"""Tables whose rows are divided among the memories of several processes."""
