from __future__ import annotations

from autotune.config import Config
from autotune.measure.worker import Session
from autotune.outcome import Outcome
from autotune.records import Request
from tests import workloads


def test_a_session_refuses_what_another_configuration_has_left_on_its_model() -> None:
    session = Session(workloads.telling_options(), "cpu")
    request = Request(seconds=0.1, part="compute")
    config = Config(batch_size=8, options=("channels_last",))
    assert session.measure(Config(batch_size=8), request).compute is not None
    assert session.measure(config, request).compute is not None
    refused = session.measure(Config(batch_size=8), request)
    assert (refused.outcome, refused.compute) == (Outcome.USER_ERROR, None)
    assert refused.message == "this session's model has channels_last: open another session"
