"""The energy of stage executions: who held which device when, and what that device drew."""
