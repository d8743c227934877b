"""RLVR trains its policy as any pipeline does."""

from roll.pipeline.base_worker import ActorWorker

__all__ = ["ActorWorker"]
