"""A run over the machines of a Ray cluster.

    driver or training process   `RayRuntime`: it makes the actors, and decides nothing
    other processes              `RemoteRuntime`, opened from the run's `RuntimeHandle`
    scheduler actor              policy, guards, barriers, EDI matrix, the head's record
    monitor actor, one a node    power of the machine's devices, energy of what held them, record
    worker actor, one a role     an engine on a card; it holds {"FPGA": 1}

The process that starts the run makes all actors and owns them: when it ends, so do they. Any of the
actors may be killed: Ray starts it anew, and what it was doing is answered on the exact path, or
sent to it once more. Who was started anew is told by its life (workers and monitors name theirs) or
by `NotStarted` (the scheduler). A new scheduler takes the matrix and the sums from what the
monitors have recorded; a new monitor gets back the executions that it had not recorded yet.
"""

ADDRESS = "ECORL_RAY_ADDRESS"
"""Environment variable: address of the cluster that was started for this run. Who starts that
cluster and who joins it both read it here."""
