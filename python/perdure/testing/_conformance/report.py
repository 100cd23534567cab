"""Counting what passed, what failed and what was left out, and saying so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Failure", "LeftOut", "Report", "Use"]


@dataclass(frozen=True, slots=True)
class Use:
    """One way of using the rows of one file on one kernel and, where there is one, one store."""

    file: str
    use: str
    target: str

    def __str__(self) -> str:
        return f"{self.file} · {self.use} · {self.target}"


@dataclass(frozen=True, slots=True)
class Failure:
    use: Use
    row: str
    text: str

    def __str__(self) -> str:
        return f"FAILED {self.use} · {self.row}: {self.text}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    use: Use
    row: str
    reason: str


@dataclass(slots=True)
class Report:
    """What a run of the vectors found. `say` gets each failure as it happens."""

    say: Callable[[str], None] = lambda line: None
    passed: Counter[Use] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def judge(self, use: Use, row: str, problem: str | None) -> None:
        """Counts one row as passed, or as failed for the reason given."""
        if problem is None:
            self.passed[use] += 1
            return
        failure = Failure(use, row, problem.replace("\n", "\\n"))
        self.failures.append(failure)
        self.say(str(failure))

    def leave_out(self, use: Use, row: str, reason: str) -> None:
        self.left_out.append(LeftOut(use, row, reason))

    @property
    def ok(self) -> bool:
        """Nothing failed, and something was judged."""
        return not self.failures and self.passed.total() > 0

    def lines(self) -> list[str]:
        """One line per file and use, in the order they came up, then the total."""
        failed = Counter(failure.use for failure in self.failures)
        reasons: dict[Use, Counter[str]] = {}
        for left in self.left_out:
            reasons.setdefault(left.use, Counter())[left.reason] += 1
        uses = dict.fromkeys([*self.passed, *failed, *reasons])
        lines = []
        for use in sorted(uses, key=lambda use: (use.file, use.use, use.target)):
            line = f"{use}: {self.passed[use]} passed, {failed[use]} failed"
            for reason, count in sorted(reasons.get(use, Counter()).items()):
                line += f", {count} left out ({reason})"
            lines.append(line)
        return [*lines, f"{self.passed.total()} passed, {failed.total()} failed"]
