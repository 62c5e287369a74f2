"""The names of all models of the wire, and of the records in answers."""

# ruff: noqa: F403

from tilewright.schema.config import Config as Config
from tilewright.schema.config_set import ConfigSet as ConfigSet
from tilewright.schema.config_set import RegretBand as RegretBand
from tilewright.schema.config_set import SetEntry as SetEntry
from tilewright.schema.entries import MissReason as MissReason
from tilewright.schema.job import JobProgress as JobProgress
from tilewright.schema.job import JobStatus as JobStatus
from tilewright.schema.match import Match as Match
from tilewright.schema.trial import Timing as Timing
from tilewright.schema.trial import Trial as Trial
from tilewright.wire.catalog import *
from tilewright.wire.exchange import *
from tilewright.wire.jobs import *
from tilewright.wire.misses import *
from tilewright.wire.requests import *
from tilewright.wire.results import *
from tilewright.wire.sets import *
