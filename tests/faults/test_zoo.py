"""Some of the faults strike a trial of a whole study; all of them do in studies/faults."""

from __future__ import annotations

import pytest

from tests.faults.injecting import inject
from tests.faults.zoo import FAULTS
from tests.quiet import undisturbed

SOME = ["item reads address zero", "worker leaves processes and exits"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_study_goes_on_after_a_fault_and_leaves_nothing_behind(name: str) -> None:
    found = undisturbed(lambda: inject(name), lambda found: found.result.rounds > 0)
    assert found.outcome is FAULTS[name].outcome, found.message
    assert found.recovery_seconds is not None
    assert found.result.rounds > 0
    assert (found.processes, found.segments, found.is_valid) == ((), (), True)
