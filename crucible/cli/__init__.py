"""The `crucible` command: one module per subcommand, imported only when it is used."""
