"""README.md and the pages beside the code: their commands are run as they stand."""
