"""A process of a cluster knows whether the main process still exists."""

from __future__ import annotations

import os

from eventservice.runtime.cluster_process import ClusterProcess


def test_a_process_is_an_orphan_when_the_lifeline_has_ended() -> None:
    process = ClusterProcess()
    found = [process.is_orphaned]  # it belongs to no cluster
    process.open_pipes()
    read_end, write_end = process._lifeline
    found.append(process.is_orphaned)
    os.write(write_end, b"x")
    found.append(process.is_orphaned)
    os.close(write_end)
    found.append(process.is_orphaned)
    assert found == [False, False, False, True]
    for end in (read_end, *process._presence):
        os.close(end)
