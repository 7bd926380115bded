"""Slots that are added while the server runs: the API process asks, the main process starts them.

LitServe fixes the number of its workers at the start. What this touches of it is private, and guarded by
tests/unit/server/test_litserve_pin.py.
"""

import multiprocessing
import threading

import litserve as ls

from runtime.server.shutdown import log

RETRY_SECONDS = 1.0
"""Time until the start of a slot is tried again."""


class SlotStarter:
    """Starts one more slot for each request. Make it before LitServe forks the API process.

    A started slot is one of LitServe's workers: it is restarted when it dies, and ended at a stop.
    """

    def __init__(self) -> None:
        self._requests, self._sender = multiprocessing.Pipe(duplex=False)
        self._lock = threading.Lock()
        self._numbers: list[int] = []  # slots that were started here
        self._closed = threading.Event()

    def request(self) -> None:
        """Request one more slot, from the API process. Never blocks: the pipe holds more than there may be slots."""
        self._sender.send_bytes(b"1")

    def listen(self, server: ls.LitServer) -> None:
        """Serve requests in a thread of the main process."""
        threading.Thread(target=self._serve, args=(server,), daemon=True, name="slot-starter").start()

    def _serve(self, server: ls.LitServer) -> None:
        while not self._closed.is_set():
            self._requests.recv_bytes()
            while not self._start(server) and not self._closed.wait(RETRY_SECONDS):
                pass

    def _start(self, server: ls.LitServer) -> bool:
        """Start the next slot. False: the system has no process, memory or file left for it."""
        with self._lock:
            if self._closed.is_set():
                return True
            (api,) = server.litapi_connector.lit_apis
            number = len(server.inference_workers)
            server._workers_per_device_by_api_path[api.api_path] = number + 1
            try:
                worker = server.launch_single_inference_worker(api, number)
            except OSError as error:
                log.error("a further slot cannot be started, and is tried again", extra={"cause": str(error)})
                return False
            server.inference_workers.append(worker)
            self._numbers.append(number)
        log.info("one slot more", extra={"slots": number + 1})
        return True

    def close(self, server: ls.LitServer) -> None:
        """End a slot that was started too late for LitServe's own stop; Python would wait for it."""
        self._closed.set()
        with self._lock:
            for worker in (server.inference_workers[number] for number in self._numbers):
                if worker.is_alive():
                    worker.kill()
