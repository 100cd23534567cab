"""`ctx.log`: a logger that is silent during replay and speaks once the pass is committed (R4, R38)."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.coroutine.replay import Replay

__all__ = ["PassLog"]

_logger: Final = logging.getLogger("perdure.workflow")
_OWN: Final = (str(Path(__file__)), logging.__file__)


class PassLog(logging.LoggerAdapter[logging.Logger]):
    """Keeps records until the pass they belong to is committed. Every record has `run_id` and `workflow`."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(_logger, {"run_id": replay.run_id, "workflow": replay.program.name})
        self._replay = replay
        self._records: list[logging.LogRecord] = []

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Logs with this pass, if the code runs for the first time."""
        if not self._replay.live or self._replay.over or not self.isEnabledFor(level):
            return
        extra = self.process(msg, kwargs)[1]["extra"]
        error = kwargs.get("exc_info")
        if error and not isinstance(error, tuple):
            error = (type(error), error, error.__traceback__) if isinstance(error, BaseException) else sys.exc_info()
        frame = sys._getframe(1)
        while frame.f_code.co_filename in _OWN and frame.f_back is not None:
            frame = frame.f_back
        code = frame.f_code
        self._records.append(
            _logger.makeRecord(
                *(_logger.name, level, code.co_filename, frame.f_lineno, msg, args),
                *(error or None, code.co_name, extra),
            )
        )

    def flush(self) -> None:
        records, self._records = self._records, []
        for record in records:
            _logger.handle(record)
