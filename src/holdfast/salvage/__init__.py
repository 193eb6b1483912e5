"""Recovery of conversations from damaged SQLite files."""
