"""``Policy``: how a tuning job searches."""

from __future__ import annotations

import enum


class Policy(enum.StrEnum):
    """Which config comes after the seeds; none of them proposes an invalid config, or one twice.

    Attributes:
        STAGED: a spread of first configs, then a model of what was measured; the default.
        TPE: Optuna's tree-structured Parzen estimator.
        CMAES: Optuna's covariance matrix adaptation.
        LOCAL: the best neighbour of the best so far, and another start where there is none.
        RANDOM: uniformly.
        BRUTE: all of them, in a random order; what any policy comes to where the budget holds the space.
    """

    STAGED = "staged"
    TPE = "tpe"
    CMAES = "cmaes"
    LOCAL = "local"
    RANDOM = "random"
    BRUTE = "brute"
