"""What travels between client and service: one pydantic model per request and response.

Requests refuse unknown fields; responses tolerate them, so that an older client reads a newer service.
"""

from tilewright.wire.catalog import DeviceList, DeviceView, FamilyList, FamilyView, KnobView, SupportView
from tilewright.wire.errors import ErrorItem, ProblemDocument
from tilewright.wire.health import Health
from tilewright.wire.jobs import JobList, JobStatus, JobView, ProgressView, TrialList
from tilewright.wire.requests import BestQuery, GemmQuery, PageQuery, Policy, ProblemFields, TuneBody
from tilewright.wire.results import (
    BestConfigList,
    BestConfigView,
    ConfigView,
    MatchView,
    TimingView,
    TrialView,
)

__all__ = [
    "BestConfigList",
    "BestConfigView",
    "BestQuery",
    "ConfigView",
    "DeviceList",
    "DeviceView",
    "ErrorItem",
    "FamilyList",
    "FamilyView",
    "GemmQuery",
    "Health",
    "JobList",
    "JobStatus",
    "JobView",
    "KnobView",
    "MatchView",
    "PageQuery",
    "Policy",
    "ProblemDocument",
    "ProblemFields",
    "ProgressView",
    "SupportView",
    "TimingView",
    "TrialList",
    "TrialView",
    "TuneBody",
]
