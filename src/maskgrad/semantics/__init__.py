"""What operations mean on values of which only some are specified."""
