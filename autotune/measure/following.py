"""A timed run in a rank that does not lead: it makes the steps that rank 0 allows, and times them itself."""

from __future__ import annotations

from dataclasses import replace

from autotune.measure.run import Opening, TimedRun, Window

__all__ = ["FollowingRun"]


class FollowingRun(TimedRun):
    """Makes the leader's steps; its windows open where the leader's do."""

    def settle(self) -> None:
        """Do nothing: the leader settles, and says when."""

    def fill(self) -> Window:
        """Go on to the end of the leader's window; the last one that was opened counts."""
        window: Window | None = None
        while isinstance(word := self._follow(), Opening):
            self._pace()
            window = replace(self._open_here(whole_epochs=word.whole_epochs), block=word.block)
        assert window is not None
        self.last = word
        self.device.synchronize()
        self._note_ends(0)
        return window

    def advance_for(self, seconds: float) -> None:
        """Train for as long as the leader does."""
        self._follow()

    def _follow(self) -> Opening | int:
        """Make steps until the leader says what is next; return that."""
        while self._team.may_step():
            self.advance(1)
            self._team.post(self._is_settled())
        return self._team.tell(0)
