"""The optimizers, each described once: parameters, state, scalars, formula (contract.md, rule 4).

A formula is the update of one element, in Python. It takes the gradient g, the weight w, the
element's state and the scalars, and returns the new weight and state. A formula runs in three
forms:

    NumPy   embstore.arithmetic.optimizers           arrays (n, dim), scalars np.float32
    Numba   embstore.arithmetic.compiled_update      float32, inlined in the loop over a row
    Torch   embstore_training.hotcold.torch_replica  tensors (n, dim), scalars tensors (1,)

All three forms must give the same bits. A formula therefore uses only operations that round once in
fp32 in each form: + - * /, unary -, abs, comparisons, and `sqrt`, `copysign` and `where` of this
module. A formula is written operation by operation, because (lr*g)/x is not lr*(g/x). There is no
shortcut for a zero gradient or rate: for a negative g, 0.0*g is -0.0, and -0.0 - -0.0 is 0.0. The
CUDA form, kernels/apply.cu, is written by hand and compared with these forms bit by bit.

An optimizer can also have a **row formula**. It takes the sum of g*g over the row (rule 3), the
row's own state, and the scalars. It returns the one scalar of the element formula, and the new
state.

**Weight decay** is applied before either formula, and is the same for all optimizers that have it.
The formulas get g + weight_decay*w in place of g (`decayed_gradient`), or, if the decay is
decoupled, (1 - lr*weight_decay)*w in place of w (`kept_weight`). The first form must not run where
the weight decay is 0: -0.0 + 0.0*w is 0.0, and 0.0 times an infinite weight is NaN. The second form
can run there: 1.0*w is w, bit for bit.

Scalars are computed in float64 once per update and table, and rounded to fp32 once. The digest
covers the fixed parameters, which are all but the learning rate. The digest omits a weight decay of
0, because existing tables are older than weight decay. All state starts at `initial_state`. In a
row, the weights are followed by the element state, one array of `dim` elements per name; the row
state is last.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np

from embstore.arrays import fp32_scalar
from embstore.errors import InvalidArgumentError

__all__ = ["OPTIMIZERS", "Adagrad", "Adam", "Ftrl", "Optimizer", "RowWiseAdagrad", "Sgd"]

# The operations for which Python has no operator. NumPy's functions are the default; Torch
# registers its own functions by type, and Numba compiles the ones that
# `embstore.arithmetic.compiled_update` supplies.


@singledispatch
def sqrt(x: Any) -> Any:
    """Return the correctly rounded square root."""
    return np.sqrt(x)


@singledispatch
def copysign(magnitude: Any, sign: Any) -> Any:
    """Return `magnitude` with the sign of `sign`."""
    return np.copysign(magnitude, sign)


@singledispatch
def where(condition: Any, x: Any, y: Any) -> Any:
    """Return `x` where `condition` is true, else `y`. One of the two may be a number."""
    return np.where(condition, x, y)


def power(base: float, n: int) -> float:
    """Return base**n, n >= 0, by square-and-multiply in float64; math.pow gives other bits on other
    machines."""
    result = 1.0
    while n:
        if n & 1:
            result *= base
        base *= base
        n >>= 1
    return result


def decayed_gradient(g: Any, w: Any, weight_decay: Any) -> Any:
    """Return the gradient plus the L2 term of the weight; only for `weight_decay` > 0."""
    return g + weight_decay * w


def kept_weight(w: Any, kept: Any) -> Any:
    """Return the decayed weight, to which the update is then applied; only for decoupled weight
    decay."""
    return kept * w


@dataclass(frozen=True)
class Optimizer:
    """Base of every optimizer; the docstring of each gives its formula."""

    learning_rate: float

    kind: ClassVar[str]
    """The optimizer's name in identities, on the wire and on the command line."""
    scalars: ClassVar[tuple[str, ...]]
    """The arguments of the row formula, or of the element formula if there is no row formula. There
    are at most `embstore.arithmetic.OWN_SCALARS` arguments, in the order in which the CUDA kernels
    read them."""
    element_state: ClassVar[tuple[str, ...]] = ()
    """State of each element: one fp32 per name."""
    row_state: ClassVar[tuple[str, ...]] = ()
    """State of a row as a whole: one fp32 per name. Only the row formula uses it."""
    element_formula: ClassVar[Callable[..., tuple[Any, ...]]]
    """(g, w, *element_state, *scalars) -> (w, *element_state)"""
    row_formula: ClassVar[Callable[..., tuple[Any, ...]] | None] = None
    """(sum of g*g, *row_state, *scalars) -> (scalar, *row_state)"""

    def __post_init__(self) -> None:
        self.check_learning_rate(self.learning_rate)

    @classmethod
    def check_learning_rate(cls, value: Any, name: str = "learning_rate") -> float:
        """Return `value` as a float if it is valid as a learning rate; errors call it `name`."""
        return fp32_scalar(value, name)

    @classmethod
    def state_dim(cls, dim: int) -> int:
        """Return the number of fp32 state elements of a row of `dim` weights."""
        return len(cls.element_state) * dim + len(cls.row_state)

    @property
    def initial_state(self) -> float:
        """The initial value of every state element."""
        return 0.0

    def scalar_values(self, t: int, learning_rate: float, dim: int) -> tuple[float, ...]:
        """Return the `scalars` of an update, in float64. `t`, at least 1, is the number of updates,
        this update included."""
        raise NotImplementedError

    def decay_values(self, learning_rate: float) -> tuple[float, float]:
        """Return, in float64, the last argument of `decayed_gradient` (0: no decay) and the last
        argument of `kept_weight` (1: no decay)."""
        return 0.0, 1.0

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The parameters that the identity of a table omits."""
        return ("learning_rate",)


def _check_normal(value: float, name: str) -> None:
    if not np.float32(value) >= np.finfo(np.float32).tiny:
        raise InvalidArgumentError(f"expected {name} to be a normal fp32 > 0, found {value!r}")


@dataclass(frozen=True)
class _Decaying(Optimizer):
    """The weight decay of all optimizers but Ftrl.

    Weight decay applies only to the rows that an update names. It is either coupled, g = g +
    weight_decay*w, as in Torch's optimizers, or decoupled, w = w*(1 - lr*weight_decay), as in
    AdamW.
    """

    _: KW_ONLY
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        fp32_scalar(self.weight_decay, "weight_decay")
        if not isinstance(self.decoupled_weight_decay, bool | np.bool_):
            raise InvalidArgumentError(
                "expected decoupled_weight_decay to be True or False, found "
                f"{self.decoupled_weight_decay!r}; give the amount as weight_decay"
            )

    def decay_values(self, learning_rate: float) -> tuple[float, float]:
        weight_decay = float(self.weight_decay)
        if self.decoupled_weight_decay:
            return 0.0, 1.0 - learning_rate * weight_decay
        return weight_decay, 1.0

    @property
    def unnamed(self) -> tuple[str, ...]:
        if self.weight_decay:
            return super().unnamed
        return (*super().unnamed, "weight_decay", "decoupled_weight_decay")


@dataclass(frozen=True)
class Sgd(_Decaying):
    """w = w - lr*g. No state."""

    kind = "sgd"
    scalars = ("lr",)

    def scalar_values(self, t: int, learning_rate: float, dim: int) -> tuple[float, ...]:
        return (learning_rate,)

    @staticmethod
    def element_formula(g: Any, w: Any, lr: Any) -> tuple[Any, ...]:
        return (w - lr * g,)


@dataclass(frozen=True)
class _Accumulating(_Decaying):
    """The parameters that both forms of Adagrad share."""

    epsilon: float = 1e-8
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        fp32_scalar(self.initial_accumulator, "initial_accumulator")
        _check_normal(fp32_scalar(self.epsilon, "epsilon"), "epsilon")

    @property
    def initial_state(self) -> float:
        return self.initial_accumulator


@dataclass(frozen=True)
class Adagrad(_Accumulating):
    """s = s + g*g; w = w - (lr*g) / (sqrt(s) + epsilon). State: s, one per weight."""

    kind = "adagrad"
    scalars = ("lr", "epsilon")
    element_state = ("s",)

    def scalar_values(self, t: int, learning_rate: float, dim: int) -> tuple[float, ...]:
        return learning_rate, self.epsilon

    @staticmethod
    def element_formula(g: Any, w: Any, s: Any, lr: Any, epsilon: Any) -> tuple[Any, ...]:
        s = s + g * g
        return w - (lr * g) / (sqrt(s) + epsilon), s


@dataclass(frozen=True)
class RowWiseAdagrad(_Accumulating):
    """s = s + mean(g*g); w = w - (lr / (sqrt(s) + epsilon)) * g. State: one s per row.

    The mean is the sum of rule 3, divided by dim.
    """

    kind = "rowwise_adagrad"
    scalars = ("lr", "epsilon", "dim")
    row_state = ("s",)

    def scalar_values(self, t: int, learning_rate: float, dim: int) -> tuple[float, ...]:
        return learning_rate, self.epsilon, dim

    @staticmethod
    def row_formula(squares: Any, s: Any, lr: Any, epsilon: Any, dim: Any) -> tuple[Any, ...]:
        s = s + squares / dim
        return lr / (sqrt(s) + epsilon), s

    @staticmethod
    def element_formula(g: Any, w: Any, rate: Any) -> tuple[Any, ...]:
        return (w - rate * g,)


@dataclass(frozen=True)
class Adam(_Decaying):
    """m = b1*m + (1-b1)*g; v = b2*v + ((1-b2)*g)*g; w = w - (lr_t*m) / (sqrt(v) + eps_t).

    State: m, then v. Both bias corrections are part of lr_t and eps_t, so that no element needs
    another division. The optimizer is lazy: a row that an update does not name keeps m and v.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    kind = "adam"
    scalars = ("lr_t", "eps_t", "b1", "one_minus_b1", "b2", "one_minus_b2")
    element_state = ("m", "v")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not fp32_scalar(getattr(self, name), name) < 1.0:
                raise InvalidArgumentError(
                    f"expected 0 <= {name} < 1, found {getattr(self, name)!r}"
                )
        _check_normal(fp32_scalar(self.epsilon, "epsilon"), "epsilon")
        _check_normal(self.epsilon * (1.0 - self.beta2) ** 0.5, "epsilon * sqrt(1 - beta2)")

    def scalar_values(self, t: int, learning_rate: float, dim: int) -> tuple[float, ...]:
        b1, b2 = self.beta1, self.beta2
        correction = math.sqrt(1.0 - power(b2, t))
        lr_t = learning_rate * correction / (1.0 - power(b1, t))
        return lr_t, self.epsilon * correction, b1, 1.0 - b1, b2, 1.0 - b2

    @staticmethod
    def element_formula(
        g: Any, w: Any, m: Any, v: Any, lr_t: Any, eps_t: Any,
        b1: Any, one_minus_b1: Any, b2: Any, one_minus_b2: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        m = b1 * m + one_minus_b1 * g
        v = b2 * v + (one_minus_b2 * g) * g
        return w - (lr_t * m) / (sqrt(v) + eps_t), m, v


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-proximal, per coordinate (McMahan et al., KDD 2013, algorithm 1). State: z, then n.

    n1 = n + g*g; sigma = (sqrt(n1) - sqrt(n)) / lr; z = (z + g) - sigma*w; n = n1; w = 0.0 where
    |z| <= l1, else -((z - copysign(l1, z)) / ((beta + sqrt(n)) / lr + l2)).

    With l1 > 0 a weight can be exactly 0. The formula divides by the learning rate, so an update
    needs a rate > 0 in fp32. The default of beta is the paper's advice, and l1 = l2 = 0 is no
    regularization. There is no weight decay: w is computed from z and n alone, and l2 draws w
    towards 0.
    """

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    _: KW_ONLY
    weight_decay: InitVar[float] = 0.0

    kind = "ftrl"
    scalars = ("lr", "beta", "l1", "l2")
    element_state = ("z", "n")

    def __post_init__(self, weight_decay: float) -> None:
        super().__post_init__()
        if weight_decay != 0:
            raise InvalidArgumentError(
                f"expected no weight_decay of Ftrl, found {weight_decay!r}: l2= draws its weights "
                "to 0"
            )
        for name in ("beta", "l1", "l2"):
            fp32_scalar(getattr(self, name), name)

    @classmethod
    def check_learning_rate(cls, value: Any, name: str = "learning_rate") -> float:
        rate = super().check_learning_rate(value, name)
        if not np.float32(rate) > 0:
            raise InvalidArgumentError(f"expected {name} to be > 0 in fp32, found {value!r}")
        return rate

    def scalar_values(self, t: int, learning_rate: float, dim: int) -> tuple[float, ...]:
        return learning_rate, self.beta, self.l1, self.l2

    @staticmethod
    def element_formula(
        g: Any, w: Any, z: Any, n: Any, lr: Any, beta: Any, l1: Any, l2: Any
    ) -> tuple[Any, ...]:
        n1 = n + g * g
        sigma = (sqrt(n1) - sqrt(n)) / lr
        z = (z + g) - sigma * w
        w = -((z - copysign(l1, z)) / ((beta + sqrt(n1)) / lr + l2))
        return where(abs(z) <= l1, 0.0, w), z, n1


OPTIMIZERS: dict[str, type[Any]] = {c.kind: c for c in (Sgd, Adagrad, RowWiseAdagrad, Adam, Ftrl)}
"""The optimizers by kind."""
