"""What a command line names: a host's own dispatcher, a flow, and something that is neither."""

from __future__ import annotations

from dispatch.kit import Recorder, story_flow

__all__ = ["dispatcher", "flow", "neither"]

dispatcher = Recorder()
flow = story_flow()
neither: list[str] = []
