"""Plugs ecorl into ROLL's pipelines on Ray, without a change to ROLL.

    driver (`command`, `driver`, `stages`)    replaces names, starts the runtime, sees each stage
    actors of the rollout (`rollouts`)        time generation and rewards, sample by sample
    workers of rewards (`workers`)            a reward model that can move, as ROLL's ``worker_cls``
    accelerator workers (`engine`)            ROLL's own worker class, as an engine of ecorl
    pool of devices (`resources`)             cards as placement groups beside ROLL's GPUs

Importing this package imports neither ROLL nor torch.
"""
