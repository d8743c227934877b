"""ROLL's dispatch, with a look at each call that the driver makes.

ROLL binds the methods of a cluster of workers by `func_generator`. In its place stands
`watched_generator`: what it binds calls the same function, and tells the hooks of this process of
it. Clusters travel to the scheduler's actors, where there are no hooks: there every call passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roll_adapters.roll.stages import hooks


class WatchedCall:
    """A bound method of a cluster; it can be pickled, and holds neither a lock nor a thread.

    Args:
        cluster: the cluster's name.
        method: the method's name.
        call: as ROLL binds it.
    """

    def __init__(self, cluster: str, method: str, call: Callable[..., Any]) -> None:
        self.cluster, self.method, self.call = cluster, method, call

    def __call__(self, *args: Any, blocking: bool = True, **kwargs: Any) -> Any:
        """Run the method on the cluster's workers; its results keep their kinds. See ROLL."""

        def send() -> Any:
            return self.call(*args, blocking=blocking, **kwargs)

        if hooks.current is None:
            return send()
        batch = next((a for a in (*args, *kwargs.values()) if hasattr(a, "batch")), None)
        return hooks.current.dispatched(self.cluster, self.method, batch, send)


def watched_generator(
    generate: Callable[..., Callable[..., Any]], note: Callable[[Any], None]
) -> Callable[..., WatchedCall]:
    """Make what stands in the place of ROLL's ``func_generator``.

    Args:
        generate: ROLL's own.
        note: told of each cluster as its methods are bound.
    """

    def bind(cls: Any, method_name: str, *args: Any, **kwargs: Any) -> WatchedCall:
        note(cls)
        call = generate(cls, method_name, *args, **kwargs)
        return WatchedCall(cls.cluster_name, method_name, call)

    return bind
