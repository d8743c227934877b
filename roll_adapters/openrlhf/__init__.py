"""Plugs ecorl into OpenRLHF's PPO trainer on Ray, without a change to OpenRLHF.

    driver (`command`, `driver`)   checks the flags, watches the actors, starts the runtime
    trainer actor (`hooks`)        sees each dispatched stage, and joins what left the GPU
    rollout actors (`rewards`)     time what of a rollout was generation and what was reward
    accelerator workers (`engine`) OpenRLHF's own actor classes, as an engine of ecorl

Importing this package imports neither OpenRLHF nor torch: `workers.install` runs in every process
of a job.
"""
