from eventservice.management.loops import RoleCommand
from eventservice.runtime.dispatcher import DispatcherRole
from eventservice.runtime.wiring import build_dispatcher


class Command(RoleCommand):
    help = "Run a dispatcher: publish events in order, and deliver webhooks."

    def build(self) -> DispatcherRole:
        return build_dispatcher()

    def once(self, dispatcher: DispatcherRole) -> None:
        """Until a pass publishes nothing."""
        while dispatcher.dispatch_once().published:
            pass
