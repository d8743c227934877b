"""Simple rules that choose width and gear: what better controllers are held against."""
