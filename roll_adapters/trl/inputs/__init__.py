"""What `ecorl run` is given: files and settings, checked before anything is written or loaded."""
