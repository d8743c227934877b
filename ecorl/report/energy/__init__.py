"""Where the joules of a run went: by stage, by cause, and on one path against the other."""
