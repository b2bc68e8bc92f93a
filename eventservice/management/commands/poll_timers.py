from eventservice.management.loops import MAX_IDLE_SECONDS, RoleCommand
from eventservice.runtime.wiring import build_engine
from orchestration.engine.engine import Engine


class Command(RoleCommand[Engine]):
    help = "Run an engine, which starts due calls, makes the HTTP requests and records the outcomes."

    def build(self) -> Engine:
        return build_engine()

    def run_once(self, engine: Engine) -> None:
        """Start calls until none is due, and wait for all attempts to finish."""
        engine.take_shards()
        while engine.poll_once(MAX_IDLE_SECONDS).started or engine.in_flight:
            pass
