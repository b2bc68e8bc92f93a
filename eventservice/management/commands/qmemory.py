from django_q.management.commands import qmemory

from eventservice.management.monitors import MissingMonitor


class Command(MissingMonitor, qmemory.Command):  # type: ignore[misc]  # django-q2 has no types
    help = "Not available here: /metrics has the memory of each process."
    instead = (
        "/metrics has the memory of each process of a machine (eventservice_process_resident_memory_bytes)."
    )
