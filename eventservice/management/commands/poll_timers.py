from eventservice.management.loops import LONGEST_NAP, RoleCommand
from eventservice.runtime.wiring import build_engine
from orchestration.engine.engine import Engine


class Command(RoleCommand):
    help = "Run an engine: start what is due, make the calls, record what came of them."

    def build(self) -> Engine:
        return build_engine()

    def once(self, engine: Engine) -> None:
        """Until a pass starts nothing, and all that was started has ended."""
        engine.take_shards()
        while engine.poll_once(LONGEST_NAP).started or engine.in_flight:
            pass
