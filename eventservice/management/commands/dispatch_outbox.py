from eventservice.management.loops import RoleCommand
from eventservice.runtime.dispatcher import DispatcherRole
from eventservice.runtime.wiring import build_dispatcher


class Command(RoleCommand[DispatcherRole]):
    help = "Run a dispatcher, which publishes events in order and delivers webhooks."

    def build(self) -> DispatcherRole:
        return build_dispatcher()

    def run_once(self, dispatcher: DispatcherRole) -> None:
        dispatcher.empty_outbox()
