"""The platform: a CPU with GPUs that Ray counts and nobody uses."""

from __future__ import annotations

import os


class CpuPlatform:
    device_name = "CPU"
    device_type = "cpu"
    ray_device_key = "GPU"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"
    ray_experimental_noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"

    @staticmethod
    def device_count() -> int:
        return int(os.environ.get("ROLL_TEST_GPUS", "0"))

    @classmethod
    def get_custom_env_vars(cls) -> dict[str, str]:
        # Ray would name the GPUs by its own count of hundredths.
        return {cls.ray_experimental_noset: "1"}

    @classmethod
    def update_env_vars_for_visible_devices(cls, env_vars: dict, gpu_ranks: list[int]) -> None:
        env_vars[cls.device_control_env_var] = ",".join(map(str, gpu_ranks))


current_platform = CpuPlatform()
