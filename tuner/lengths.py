"""How quickly costs change along each knob: the length scales of a Gaussian process, fitted.

The fit maximises the likelihood times log-normal priors, a length of 1 (the whole range of a knob) and
a noise of 1 % of the variance, with a step that only heeds the signs of the gradient (Rprop, Riedmiller
& Braun 1993). Wide priors are no use here: with some dozens of configs known the likelihood is flat.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
A = TypeVar("A", Floats, npt.NDArray[np.float32])

LENGTH_DEVIATION = 0.5
NOISE = 0.01
NOISE_DEVIATION = 1.5
_STEPS = 15
_FIRST_STEP = 0.2
_STEP_BOUNDS = (1e-3, 0.6)
_LEAST = np.log(1e-5)


@dataclasses.dataclass(frozen=True, slots=True)
class Scales:
    """Logarithms of a length a knob, and of the noise, as one vector.

    Attributes:
        logs: (knobs + 1,) natural logarithms; the last one is the noise's, a share of the variance.
    """

    logs: Floats

    @classmethod
    def start(cls, knobs: int) -> Scales:
        """The centre of the priors."""
        return cls(np.append(np.zeros(knobs), math.log(NOISE)))

    @property
    def weights(self) -> Floats:
        """(knobs,) what squared distances are multiplied by."""
        weights: Floats = np.exp(-2.0 * self.logs[:-1])
        return weights

    @property
    def noise(self) -> float:
        """The share of the variance that no distance explains."""
        return math.exp(float(self.logs[-1]))


def correlation(squared: A) -> A:
    """Matern-5/2 of squared distances, in their precision."""
    root = np.sqrt(5.0 * squared)
    alike: A = (1.0 + root + root * root / 3.0) * np.exp(-root)
    return alike


def fitted(squared: Floats, costs: Floats, start: Scales) -> Scales:
    """The best scales met on the way up from ``start``.

    ``squared`` is (knobs, n, n), the squared distances of n configs along each knob; ``costs`` is (n,),
    of mean 0.
    """
    here, step = start.logs, np.full(len(start.logs), _FIRST_STEP)
    best, lowest, before = here, math.inf, np.zeros(len(here))
    for _ in range(_STEPS):
        loss, slope = _loss(squared, costs, here)
        if loss < lowest:
            best, lowest = here, loss
        agree = np.sign(slope * before)
        step = np.clip(step * np.select([agree > 0, agree < 0], [1.3, 0.5], 1.0), *_STEP_BOUNDS)
        here, before = np.maximum(here - np.sign(slope) * step, _LEAST), slope
    return Scales(best)


def _loss(squared: Floats, costs: Floats, logs: Floats) -> tuple[float, Floats]:
    """The negative log posterior, the variance profiled out, and its gradient by the logarithms."""
    scales, count = Scales(logs), len(costs)
    distance = np.tensordot(scales.weights, squared, 1)
    covariance = correlation(distance) + scales.noise * np.eye(count)
    inverse = np.linalg.inv(covariance)
    weighed = inverse @ costs
    variance = max(float(costs @ weighed) / count, 1e-9)
    _, volume = np.linalg.slogdet(covariance)
    outer = 0.5 * (inverse - np.outer(weighed, weighed) / variance)
    root = np.sqrt(5.0 * distance)
    # The derivative of Matern-5/2 by the squared distance is -5/6 (1 + root) exp(-root).
    pull = outer * (5.0 / 3.0) * (1.0 + root) * np.exp(-root)
    slope = np.append(scales.weights * np.tensordot(squared, pull, 2), scales.noise * float(np.trace(outer)))
    away = (logs - Scales.start(len(squared)).logs) / _deviations(len(squared))
    loss = 0.5 * count * math.log(variance) + 0.5 * float(volume) + 0.5 * float(away @ away)
    return loss, slope + away / _deviations(len(squared))


def _deviations(knobs: int) -> Floats:
    return np.append(np.full(knobs, LENGTH_DEVIATION), NOISE_DEVIATION)
