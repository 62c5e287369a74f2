"""How connections to SQLite and PostgreSQL are made, and how their transactions begin.

Options of a transaction: :data:`READ` for one that does not write, :data:`WAIT_S` for the seconds that one
waits for other writers.
"""

READ = "tilewright_read"
WAIT_S = "tilewright_wait_s"
