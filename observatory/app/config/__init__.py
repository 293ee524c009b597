"""The configuration of a platform: one TOML file, overridden by environment variables and command-line options."""
