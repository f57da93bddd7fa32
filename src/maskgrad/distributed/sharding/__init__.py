"""Tables with rows sharded over several processes."""
