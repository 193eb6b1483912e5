"""One suite for every database: no SQL and no driver in any test, so that all must keep the same promises."""
