from tests.process_harness import harness, rng
from tests.tcp_proxy import proxy

__all__ = ["harness", "proxy", "rng"]
