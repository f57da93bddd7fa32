"""The command ``maskgrad``: one small file per subcommand, and one folder per demonstration."""
