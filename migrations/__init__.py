"""The history of the database schema (Alembic); run by ``tuner.store.database.Store.migrate``."""
