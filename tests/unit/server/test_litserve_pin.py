"""Every private part of LitServe that we use, as it is in the pinned version.

If a test fails, review runtime/server/run.py, runtime/server/slot_starter.py and runtime/slots/worker.py before
raising the pin.
"""

import inspect
from importlib.metadata import version

import litserve as ls
import litserve.server
import uvicorn
from litserve.loops import LitLoop
from litserve.loops.loops import inference_worker
from litserve.specs.base import LitSpec


def test_the_version_is_the_reviewed_one() -> None:
    assert version("litserve") == "0.2.19"


def test_run_still_names_the_mcp_switch() -> None:
    import runtime.server.run  # noqa: F401 - the import sets the switch

    assert litserve.server._MCP_AVAILABLE is False
    assert "_MCP_AVAILABLE" in inspect.getsource(ls.LitServer._start_server)


def test_run_waits_for_the_shutdown_event_and_names_its_api_process() -> None:
    assert "self._shutdown_event.wait()" in inspect.getsource(ls.LitServer.run)
    assert 'name=f"LitServer-{response_queue_id}"' in inspect.getsource(ls.LitServer._start_server)


def test_a_worker_calls_our_loop_with_its_parameters() -> None:
    names = list(inspect.signature(LitLoop.__call__).parameters)
    assert names[1:4] == ["lit_api", "device", "worker_id"]
    source = inspect.getsource(inference_worker)
    assert "loop(\n        lit_api,\n        device,\n        worker_id," in source


def test_the_monitor_restarts_dead_workers_at_our_interval() -> None:
    source = inspect.getsource(ls.LitServer._start_worker_monitoring)
    assert "launch_single_inference_worker" in source
    assert "time.sleep(self.monitor_internal)" in source
    assert 'logger.exception("Monitoring worker crashed")' in source


def test_stop_waits_for_running_responses_for_our_timeout() -> None:
    source = inspect.getsource(ls.LitServer._perform_graceful_shutdown)
    assert "uw.join(timeout=self.uvicorn_graceful_timeout)" in source
    assert "timeout_graceful_shutdown=self.uvicorn_graceful_timeout" in inspect.getsource(ls.LitServer._start_server)


def test_spec_endpoints_become_plain_routes_and_pickle_without_us() -> None:
    spec = LitSpec()
    spec.add_endpoint("/x", lambda: None, ["GET"])
    assert [path for path, _, _ in spec.endpoints] == ["/x"]
    assert spec.__getstate__()["_server"] is None
    assert "app.add_api_route" in inspect.getsource(ls.LitServer._register_spec_endpoints)


def test_workers_are_spawned_and_may_have_children() -> None:
    source = inspect.getsource(ls.LitServer.launch_single_inference_worker)
    assert 'mp.get_context("spawn")' in source
    assert "daemon" not in source


def test_litserve_lifts_starlettes_upload_limits() -> None:
    """This is why uploads are read by our own bounded parser."""
    assert "MultiPartParser.spool_max_size = sys.maxsize" in inspect.getsource(litserve.server)


def test_the_api_process_and_the_manager_are_forks_of_the_main_process() -> None:
    """`_forks_die_with` affects forks only, and sets how the manager is started."""
    assert 'ctx = mp.get_context("fork")' in inspect.getsource(ls.LitServer._start_server)
    assert "manager = mp.Manager()" in inspect.getsource(ls.LitServer)


def test_run_binds_uvicorns_socket_and_passes_it_to_the_api_process() -> None:
    """`_listen_at` sets the address."""
    assert "sockets = [config.bind_socket()]" in inspect.getsource(ls.LitServer.run)
    assert "args=(response_queue_id, sockets)" in inspect.getsource(ls.LitServer._start_server)


def test_the_api_process_shuts_down_as_uvicorn_does() -> None:
    """`_close_port` runs first."""
    import runtime.server.run

    assert litserve.server._Server.__mro__[1] is uvicorn.Server
    assert litserve.server._Server.shutdown is runtime.server.run._close_port
    assert "await self.shutdown(sockets=sockets)" in inspect.getsource(uvicorn.Server._serve)


def test_litserves_variable_for_a_key_is_read_from_its_module() -> None:
    import runtime.server.run  # noqa: F401 - the import removes the key

    assert litserve.server.LIT_SERVER_API_KEY is None
    assert "if LIT_SERVER_API_KEY:" in inspect.getsource(ls.LitServer.setup_auth)


def test_a_failed_start_of_a_slot_keeps_its_ended_process_in_the_list() -> None:
    source = inspect.getsource(ls.LitServer._start_worker_monitoring)
    assert "self.inference_workers[idx] = self.launch_single_inference_worker(lit_api, worker_id)" in source
    assert "self.inference_workers = []" in inspect.getsource(ls.LitServer.run)


def test_the_number_of_workers_is_looked_up_at_each_use() -> None:
    """`slot_starter` adds workers, and LitServe then finds their devices and restarts them."""
    launch = inspect.getsource(ls.LitServer.launch_single_inference_worker)
    assert "device = inference_workers_config[worker_id]" in launch
    config = inspect.getsource(ls.LitServer._inference_workers_config_for_api)
    assert "wpd = self._workers_per_device_by_api_path[api_path]\n        return self.devices * wpd" in config
    monitor = inspect.getsource(ls.LitServer._start_worker_monitoring)
    assert "for i, proc in enumerate(self.inference_workers):" in monitor
    assert "workers_conf = self._inference_workers_config_for_api(lit_api.api_path)" in monitor
    assert "lit_api = self.litapi_connector.lit_apis[lit_api_id]" in monitor
    assert "enumerate(self.inference_workers)" in inspect.getsource(ls.LitServer._perform_graceful_shutdown)
