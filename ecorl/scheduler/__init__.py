"""TODO-DOC."""
