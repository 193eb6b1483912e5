"""The PostgreSQL driver, built on psycopg."""
