"""A server's part of a race for one limit: `python -m tests.unit.fleet.racer URL CAPACITY COUNT`.

It prints a line for each request that it lets in, before the next one. Threads race within it, too.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from fleet.blocks import LimitBlock
from fleet.grants import BlockTable
from fleet.membership.members import open_members

NODES = 3


def main() -> None:
    url, capacity, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    table, block, lock = BlockTable(open_members(url, "race")._database), LimitBlock(), Lock()

    def request(_number: int) -> None:
        with lock:
            now = time.monotonic()
            if not block.reserve(1, now):
                grant = table.take("cap", capacity, 1, NODES, "day")
                block.add(grant.amount, grant.window, grant.seconds, now)
                if not block.reserve(1, now):
                    return
            print("in", flush=True)
        time.sleep(0.001)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(request, range(count)))
    with lock:
        if block.left:
            table.give_back("cap", block.window, block.left)
    print("done", flush=True)


if __name__ == "__main__":
    main()
