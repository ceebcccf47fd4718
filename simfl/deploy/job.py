"""A FLARE job: two classes by name, an order, and no code."""

import json
from pathlib import Path

from simfl.deploy.endpoints import CLASSES
from simfl.deploy.kits import CONTROLLER, EXECUTOR
from simfl.deploy.orders import Order
from simfl.deploy.study import Study


def write_job(folder: Path, order: Order, study: Study) -> Path:
    """Write a FLARE job: the two endpoint classes by name, the order for the hub's, and no code. Returns its folder."""
    job, (hub, party) = folder / order.run, CLASSES
    threads, seconds = 2 * len(study.parties) + 8, 120 + 4 * len(study.parties)  # the hub starts one after the other
    calls = {"collab_obj_ids": [], "max_inbound_call_threads": threads, "sync_task_timeout": seconds}
    controller = {"path": CONTROLLER, "args": {"server_obj_id": "hub", **calls}}
    executor = {"client_obj_id": "party", "collab_obj_ids": [], "max_inbound_call_threads": 8}
    deploy_map = {"app_server": ["server"], "app_party": study.parties}
    meta = {"name": job.name, "resource_spec": {}, "min_clients": study.parties_needed, "deploy_map": deploy_map}
    files = {
        "meta.json": meta,
        "app_server/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "controller", **controller}],
            "components": [{"id": "hub", "path": hub, "args": {"order": order.to_text()}}],
        },
        "app_party/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": executor}}],
            "components": [{"id": "party", "path": party, "args": {}}],
        },
    }
    for path, content in files.items():
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text(json.dumps(content, indent=2))
    return job
