from eventservice.management.loops import RoleCommand
from eventservice.runtime.dispatcher import DispatcherRole
from eventservice.runtime.wiring import build_dispatcher


class Command(RoleCommand[DispatcherRole]):
    help = "Run a dispatcher, which publishes events in order and delivers webhooks."

    def build(self) -> DispatcherRole:
        return build_dispatcher()

    def run_once(self, dispatcher: DispatcherRole) -> None:
        """Publish until a pass finds nothing, and send to the brokers what they accept."""
        while dispatcher.dispatch_once().published:
            pass
        dispatcher.empty_queues()
