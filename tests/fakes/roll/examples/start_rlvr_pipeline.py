"""Runs RLVR with a config: ``--config_path`` relative to this file, and ``--config_name``."""

from __future__ import annotations

import argparse

from dacite import from_dict
from hydra import compose, initialize
from omegaconf import OmegaConf
from roll.distributed.scheduler.initialize import init
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config_path", default="config")
    parser.add_argument("--config_name", default="rlvr_config")
    args = parser.parse_args()
    initialize(config_path=args.config_path, job_name="app", version_base=None)
    data = OmegaConf.to_container(compose(config_name=args.config_name), resolve=True)
    pipeline_config = from_dict(data_class=RLVRConfig, data=data)
    init()
    RLVRPipeline(pipeline_config=pipeline_config).run()


if __name__ == "__main__":
    main()
