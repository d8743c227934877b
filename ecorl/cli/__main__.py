"""``python -m ecorl.cli``."""

from ecorl.cli import main

if __name__ == "__main__":
    main()
