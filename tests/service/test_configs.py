"""Table configurations that other clients send: what may be absent, and what may not.

That configurations come back as they were sent `tests/commands` asks of random ones.
"""

import pytest

from embstore.config import Adam, Constant, Sgd, TableConfig, Uniform
from embstore.errors import InvalidArgumentError
from embstore_proto.configs import config_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb


@pytest.fixture
def message() -> pb.TableConfig:
    return pb.TableConfig(name="a", dim=4, rows=9, uniform=pb.Uniform(low=0, high=1))


@pytest.mark.parametrize("initializer", [Constant(0.0), Uniform(0.0, 0.0)])
def test_values_of_zero_are_sent(initializer):
    config = TableConfig.checked(
        "a/b", dim=4096, rows=2**40, optimizer=Sgd(0.0), initializer=initializer, seed=0
    )
    sent = pb.TableConfig()
    message_of(config, sent)
    assert config_of(pb.TableConfig.FromString(sent.SerializeToString())) == config


def test_what_is_absent_has_its_default(message):
    message.adam.learning_rate = 0.5
    assert config_of(message) == TableConfig.checked(
        "a", dim=4, rows=9, optimizer=Adam(0.5), initializer=Uniform(0, 1)
    )


def test_no_optimizer_and_an_unknown_key_space_are_refused(message):
    with pytest.raises(InvalidArgumentError, match="expected an optimizer, one of sgd, adagrad"):
        config_of(message)
    message.sgd.learning_rate = 0.5
    message.key_space = 2  # type: ignore[assignment]
    with pytest.raises(InvalidArgumentError, match="key_space dense or sparse, found 2"):
        config_of(message)
