from django_q.management.commands import qmonitor

from eventservice.management.monitors import MissingMonitor


class Command(MissingMonitor, qmonitor.Command):  # type: ignore[misc]  # django-q2 has no types
    help = "Not available here: see `manage.py qinfo`, and the page Cluster of the console."
    instead = (
        "`manage.py qinfo` lists the processes, `manage.py doctor` says what is wrong, and the page Cluster of the console"
        " shows both."
    )
