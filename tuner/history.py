"""What a study was asked and told, as rows of its pool."""

from __future__ import annotations

import dataclasses

from optuna.study import Study
from optuna.trial import TrialState

from tuner.pool import Pool
from tuner.sampler import row_of


@dataclasses.dataclass(slots=True)
class History:
    """Rows in the order of asks; kept between asks, so that each trial is read once.

    Tells come in the order of asks, so the first ``len(values)`` rows are the told ones.

    Attributes:
        pool: what the study searches.
        rows: of all asks.
        values: of those told: microseconds, or None where the config failed.
    """

    pool: Pool
    rows: list[int] = dataclasses.field(default_factory=list)
    values: list[float | None] = dataclasses.field(default_factory=list)

    def update(self, study: Study, asking: int) -> None:
        """Read what is new; the trial of number ``asking`` has no row yet."""
        trials = study.get_trials(deepcopy=False)
        self.rows += [row_of(self.pool, trial.params) for trial in trials[len(self.rows) : asking]]
        for trial in trials[len(self.values) : asking]:
            if not trial.state.is_finished():
                break
            self.values.append(trial.value if trial.state is TrialState.COMPLETE else None)

    @property
    def measured(self) -> int:
        """Told rows that have a value."""
        return sum(value is not None for value in self.values)
