"""How a worker's method is called through its cluster: who is given what, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import ray

from roll.distributed.scheduler.protocol import DataProto, ObjectRefWrap

BIND_WORKER_METHOD_FLAG = "BIND_WORKER_METHOD_FLAG"


class Dispatch(Enum):
    ONE_TO_ALL = auto()
    ONE_TO_ALL_ONE = auto()
    ALL_TO_ALL = auto()
    DP_MP_COMPUTE = auto()
    DP_MP_DISPATCH_FIRST = auto()


class Execute(Enum):
    ALL = auto()
    RANK_ZERO = auto()


def register(
    dispatch_mode: Dispatch = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    clear_cache: bool = True,
    **more: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a method, plain or async, that the cluster has as well."""

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        how = {"dispatch_mode": dispatch_mode, "execute_mode": execute_mode, **more}
        setattr(method, BIND_WORKER_METHOD_FLAG, how)
        return method

    return mark


def func_generator(
    cls: Any,
    method_name: str,
    dispatch_fn: Callable[..., Any],
    collect_fn: Callable[..., Any],
    execute_fn: Callable[..., Any],
) -> Callable[..., Any]:
    """The cluster's own method: gives each worker its part and collects what they answer."""

    def func(*args: Any, blocking: bool = True, **kwargs: Any) -> Any:
        args, kwargs = dispatch_fn(cls, *args, **kwargs)
        output = execute_fn(method_name, *args, **kwargs)
        if blocking:
            output = ray.get(output)
        return collect_fn(cls, output)

    return func


# ---------------------------------------------------------------- given: one value a worker


def _dispatch_one_to_all(cls: Any, *args: Any, **kwargs: Any) -> tuple[list, dict]:
    n = cls.world_size
    return [[value] * n for value in args], {key: [value] * n for key, value in kwargs.items()}


def _dispatch_all_to_all(cls: Any, *args: Any, **kwargs: Any) -> tuple[list, dict]:
    assert all(len(values) == cls.world_size for values in (*args, *kwargs.values()))
    return list(args), kwargs


def _dispatch_rows(cls: Any, *args: Any, **kwargs: Any) -> tuple[list, dict]:
    """Each data-parallel rank has its share of the rows; whatever has none goes to all."""

    def share(value: Any) -> list[Any]:
        if not isinstance(value, DataProto):
            return [value] * cls.world_size
        chunks = value.chunk(cls.dp_size)
        return [chunks[rank.dp_rank] for rank in cls.worker_rank_info]

    return [share(value) for value in args], {key: share(value) for key, value in kwargs.items()}


# ---------------------------------------------------------------- collected


def _collect_all(cls: Any, output: list[Any]) -> list[Any]:
    return output


def _collect_first(cls: Any, output: list[Any]) -> Any:
    return output[0]


def _collect_rows(cls: Any, output: list[Any]) -> Any:
    if all(isinstance(one, ray.ObjectRef) for one in output):
        return [ObjectRefWrap(ref, collected=True) for ref in output]
    return DataProto.concat(output)


DISPATCH: dict[Dispatch, tuple[Callable[..., Any], Callable[..., Any]]] = {
    Dispatch.ONE_TO_ALL: (_dispatch_one_to_all, _collect_all),
    Dispatch.ONE_TO_ALL_ONE: (_dispatch_one_to_all, _collect_first),
    Dispatch.ALL_TO_ALL: (_dispatch_all_to_all, _collect_all),
    Dispatch.DP_MP_COMPUTE: (_dispatch_rows, _collect_rows),
    Dispatch.DP_MP_DISPATCH_FIRST: (_dispatch_rows, _collect_rows),
}
EXECUTE = {Execute.ALL: "execute_all", Execute.RANK_ZERO: "execute_rank_zero"}
