"""Slots added while the server runs: the API process requests them, the main process starts them.

LitServe fixes the number of its workers at the start. The private parts used here are checked by
tests/unit/server/test_litserve_pin.py.
"""

import multiprocessing
import threading

import litserve as ls

from runtime.server.shutdown import log

RETRY_SECONDS = 1.0
"""Seconds until a failed start of a slot is retried."""


class SlotStarter:
    """Starts one more slot per request. Must be created before LitServe forks the API process.

    A started slot is one of LitServe's workers: it is restarted if it dies, and ended at the stop.
    """

    def __init__(self) -> None:
        self._requests, self._sender = multiprocessing.Pipe(duplex=False)
        self._lock = threading.Lock()
        self._numbers: list[int] = []  # slots started here
        self._closed = threading.Event()

    def request(self) -> None:
        """Request one more slot, from the API process.

        Never blocks, because the pipe holds more requests than there may be slots.
        """
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
        """Start the next slot. Returns False if the system is out of processes, memory or files."""
        with self._lock:
            if self._closed.is_set():
                return True
            (api,) = server.litapi_connector.lit_apis
            number = len(server.inference_workers)
            server._workers_per_device_by_api_path[api.api_path] = number + 1
            try:
                worker = server.launch_single_inference_worker(api, number)
            except OSError as error:
                log.error("cannot start another slot; trying again", extra={"cause": str(error)})
                return False
            server.inference_workers.append(worker)
            self._numbers.append(number)
        log.info("started one more slot", extra={"slots": number + 1})
        return True

    def close(self, server: ls.LitServer) -> None:
        """End slots that were started too late for LitServe's own stop; otherwise Python would wait for them."""
        self._closed.set()
        with self._lock:
            for worker in (server.inference_workers[number] for number in self._numbers):
                if worker.is_alive():
                    worker.kill()
