"""`headway watch --serve PORT`: what a run holds as metrics for Prometheus, from the last frame. Extra `metrics`."""

from collections.abc import Callable, Iterator
from typing import Any

from headway.errors import InputError
from headway.guard.watch import View

PROCESSES = 20
"""Processes that are told, the largest first."""


def serve(port: int, view: Callable[[], View]) -> Callable[[], None]:
    """Serve metrics on a port of all addresses until the function that is returned is called.

    InputError where `prometheus_client` is not installed, or the port is taken.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise InputError("--serve needs prometheus_client: pip install prometheus-client") from None
    registry = CollectorRegistry()
    registry.register(Collector(view))
    try:
        server, thread = start_http_server(port, registry=registry)
    except (OSError, OverflowError) as error:
        raise InputError(f"--serve {port}: cannot listen there ({error})") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class Collector:
    """Makes metrics of what was seen last, when somebody asks."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def describe(self) -> list[Any]:
        """Nothing is known before the first frame."""
        return []

    def collect(self) -> Iterator[Any]:
        """One metric family after the other."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        view = self._view()
        frame = view.frame
        if frame is None:
            return
        used = GaugeMetricFamily("headway_used_bytes", "What a gauge counts", labels=["pool", "gauge"])
        limit = GaugeMetricFamily("headway_limit_bytes", "Where something happens", labels=["pool", "gauge"])
        for gauge in frame.gauges:
            used.add_metric([gauge.pool, gauge.name], gauge.used)
            if gauge.limit is not None:
                limit.add_metric([gauge.pool, gauge.name], gauge.limit)
        yield from (used, limit)
        rss = GaugeMetricFamily("headway_process_rss_bytes", "Resident memory of a process", labels=["pid", "name"])
        for use in frame.processes[:PROCESSES]:
            rss.add_metric([str(use.pid), use.name], use.rss)
        yield rss
        yield GaugeMetricFamily("headway_processes", "Processes of the run", value=len(frame.processes))
        yield GaugeMetricFamily("headway_frame_timestamp_seconds", "When the last frame was taken", value=frame.t)
        if frame.step is not None:
            yield GaugeMetricFamily("headway_step", "The step that the log named last", value=frame.step)
        reach = GaugeMetricFamily("headway_forecast_seconds", "Until a limit is reached", labels=["pool", "gauge"])
        for each in view.forecasts:
            if each.expected is not None:
                reach.add_metric([each.pool, each.gauge], max(0.0, each.expected.t - frame.t))
        yield reach
        actions = CounterMetricFamily("headway_guard_actions", "What the guard decided", labels=["action"])
        for name, count in view.counts.items():
            actions.add_metric([name], count)
        yield actions
