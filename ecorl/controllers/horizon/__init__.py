"""Controllers that look ahead: what a token is worth follows from what the grid may still bring."""
