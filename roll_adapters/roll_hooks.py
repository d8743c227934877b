"""ecorl inside ROLL's pipelines.

    from roll_adapters.roll_hooks import AutoDeviceMapping
    with AutoDeviceMapping("configs", "rlvr") as mapping:
        mapping.build().run()

The same as ``ecorl-roll start --config_path configs --config_name rlvr``. Three parts are put in
the place of ROLL's own, and nothing of ROLL is edited:

    dispatch   each stage that the driver dispatches is recorded, with its role, rows and tokens
    order      in RLVR the reference is started where ROLL would wait for it, and joined by
               ``prompt_id`` where its log-probs are used first
    devices    cards (``fpga:0`` in ``device_mapping``) join the pool of placement groups, on nodes
               with or without GPUs
"""

from roll_adapters.roll.driver import AutoDeviceMapping

__all__ = ["AutoDeviceMapping"]
