"""The store: conversations that cannot fork. `db.SessionDB` is its public interface."""
