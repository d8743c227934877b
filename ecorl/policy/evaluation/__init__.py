"""Compares placement policies on scenarios that training did not see, and reports on them."""
