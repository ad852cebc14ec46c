"""The process: variables, defaults in force, switches, optional packages."""
