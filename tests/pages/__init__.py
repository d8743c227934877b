"""The pages for users (README.md and those beside the code): their commands are run as they stand."""
