"""Asks the scheduler that is an actor of Ray, in a process of its own: ``python -m gpuvirt.cluster.on_ray.query``, a request on stdin, the answer on
stdout, both msgpack.

A process that is connected to a Ray cluster has Ray's threads and signals, and ends when it loses the cluster. A daemon must do none of that, so
whatever is asked of the actor is asked by a process that ends with the answer.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from gpuvirt.transport.packing import pack, unpack

LIMIT = 30.0  # seconds for an answer of the actor


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request.

    Args:
        asked: `address` of the cluster, `method` of the actor and `said`, its arguments. For a host that asks for the scheduler also `key`, `secret`,
            `tokens`: those of the pool of which the host has been, or which begins with it if the cluster has none; and `rebalance`.

    Returns:
        `answer`; or `error`, with `absent` when the cluster or the actor cannot be reached, `later` as the actor has it.
    """
    try:
        import ray
    except ImportError:
        return {"error": "Ray is not installed here: pip install 'gpuvirt[cluster]'"}
    from gpuvirt.cluster.on_ray.actor import NAME, NAMESPACE, SchedulerActor

    address = asked["address"]
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL)
    except ConnectionError:
        advice = "run `ray start --address=HOST:6379` first, and have RAY_AUTH_MODE here as it is there"
        return {"error": f"this machine is no node of a Ray cluster that can be reached ({address}): {advice}", "absent": True}
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        return {"error": f"the Ray cluster ({address}) cannot be reached: {_line(error)}", "absent": True}
    try:
        said = asked["said"]
        if asked["method"] != "join":
            actor = ray.get_actor(NAME)
        else:
            # Here, where gpuvirt is installed; when this node is lost, on any other.
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            options = {"name": NAME, "lifetime": "detached", "get_if_exists": True, "max_restarts": -1, "num_cpus": 0, "scheduling_strategy": here}
            actor = ray.remote(SchedulerActor).options(**options).remote(asked["key"], asked["rebalance"])
            if ray.get(actor.key.remote(), timeout=LIMIT) == asked["key"]:
                said = [{**said[0], "secret": asked["secret"], "tokens": asked["tokens"]}]
        found: dict[str, Any] = ray.get(getattr(actor, asked["method"]).remote(*said), timeout=LIMIT)
        return found
    except (ray.exceptions.RayError, ValueError) as error:  # ValueError: there is no such actor
        return {"error": f"the pool's scheduler, an actor of the Ray cluster ({address}), does not answer: {_line(error)}", "absent": True}


def _line(error: Exception) -> str:
    """What is wrong, without Ray's tracebacks and advice."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {(str(cause).strip().splitlines() or [''])[0][:300]}"


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints is no answer
    out.write(pack(answer(unpack(sys.stdin.buffer.read()))))
    out.close()
    os._exit(0)  # what Ray has to take down takes a second and a half, and is nobody's


if __name__ == "__main__":
    main()
