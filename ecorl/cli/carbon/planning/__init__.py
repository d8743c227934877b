"""``ecorl carbon profile``, ``simulate`` and ``plan``: when to train, and what that is worth."""
