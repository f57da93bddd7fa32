"""The command ``maskgrad``: one file per subcommand."""
