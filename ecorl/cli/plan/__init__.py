"""``ecorl plan``."""

from __future__ import annotations

from ecorl.cli.plan.app import plan

__all__ = ["plan"]
