"""Table configurations travel whole."""

import pytest

from embstore import (
    Adagrad,
    Adam,
    Constant,
    InvalidArgumentError,
    Normal,
    RowWiseAdagrad,
    Sgd,
    Uniform,
)
from embstore.config import TableConfig
from embstore_proto.configs import Described, config_of, described_of, description_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb

OPTIMIZERS = [
    Sgd(0.0),
    Sgd(0.1),
    Adagrad(0.1),
    Adagrad(0.1, epsilon=1e-6, initial_accumulator=0.5),
    RowWiseAdagrad(0.0, epsilon=1e-6),
    Adam(0.1, beta1=0.0, beta2=0.0, epsilon=1e-3),
]
INITIALIZERS = [Uniform(0.0, 0.0), Uniform(-1.0, 1.0), Normal(0.0, 0.0), Constant(0.0)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("initializer", INITIALIZERS)
@pytest.mark.parametrize("seed", [None, 0, 2**64 - 1])
def test_a_configuration_comes_back_equal(optimizer, initializer, seed):
    config = TableConfig.checked(
        "a/b", dim=4096, rows=2**40, optimizer=optimizer, initializer=initializer, seed=seed
    )
    sent = message_of(config).SerializeToString()
    assert config_of(pb.TableConfig.FromString(sent)) == config
    described = Described(config, 7, 2**63)
    assert described_of(description_of(described)) == described


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:1])
def test_what_is_absent_has_its_default(optimizer):
    message = pb.TableConfig(name="a", dim=4, rows=9, uniform=pb.Uniform(low=0, high=1))
    message.adam.learning_rate = 0.5
    config = config_of(message)
    assert config.optimizer == Adam(0.5)
    assert (
        config.seed
        == TableConfig.checked(
            "a", dim=4, rows=9, optimizer=optimizer, initializer=Uniform(0, 1)
        ).seed
    )


def test_no_optimizer_and_an_unknown_key_space_are_refused():
    message = pb.TableConfig(name="a", dim=4, rows=9, uniform=pb.Uniform(low=0, high=1))
    with pytest.raises(InvalidArgumentError, match="expected an optimizer, one of sgd, adagrad"):
        config_of(message)
    message.sgd.learning_rate = 0.5
    message.key_space = 1
    with pytest.raises(InvalidArgumentError, match="key_space dense, found 1"):
        config_of(message)
