"""Where a slot listens."""


def socket_path(run_dir: str, slot_id: int) -> str:
    return f"{run_dir}/slot-{slot_id}.sock"
