"""What travels between client and service: one pydantic model per request and response.

Requests refuse unknown fields; responses tolerate them, so that an older client reads a newer service.
"""

from tilewright.wire.catalog import DeviceList, DeviceView, FamilyList, FamilyView, KnobView, SupportView
from tilewright.wire.errors import ErrorItem, ProblemDocument
from tilewright.wire.exchange import Counts, ExportQuery, Format, ImportAnswer
from tilewright.wire.health import Health
from tilewright.wire.jobs import JobList, JobStatus, JobView, ProgressView, TrialList
from tilewright.wire.lookups import LookupAnswer, LookupBody, LookupView
from tilewright.wire.misses import (
    AnyTuneBody,
    FromMisses,
    MissAnswer,
    MissesBody,
    MissList,
    MissQuery,
    MissReason,
    MissReport,
    MissView,
    TuneMissesBody,
)
from tilewright.wire.requests import BestQuery, GemmQuery, PageQuery, Policy, ProblemFields, TuneBody
from tilewright.wire.results import (
    BestConfigList,
    BestConfigView,
    ConfigView,
    MatchView,
    TimingView,
    TrialView,
    TrustView,
)
from tilewright.wire.sets import (
    BundleBody,
    ConfigSet,
    PinBody,
    RegretBand,
    SetChange,
    SetDiff,
    SetEntry,
    SetInfo,
    SetList,
)

__all__ = [
    "AnyTuneBody",
    "BestConfigList",
    "BestConfigView",
    "BestQuery",
    "BundleBody",
    "ConfigSet",
    "ConfigView",
    "Counts",
    "DeviceList",
    "DeviceView",
    "ErrorItem",
    "ExportQuery",
    "FamilyList",
    "FamilyView",
    "Format",
    "FromMisses",
    "GemmQuery",
    "Health",
    "ImportAnswer",
    "JobList",
    "JobStatus",
    "JobView",
    "KnobView",
    "LookupAnswer",
    "LookupBody",
    "LookupView",
    "MatchView",
    "MissAnswer",
    "MissList",
    "MissQuery",
    "MissReason",
    "MissReport",
    "MissView",
    "MissesBody",
    "PageQuery",
    "PinBody",
    "Policy",
    "ProblemDocument",
    "ProblemFields",
    "ProgressView",
    "RegretBand",
    "SetChange",
    "SetDiff",
    "SetEntry",
    "SetInfo",
    "SetList",
    "SupportView",
    "TimingView",
    "TrialList",
    "TrialView",
    "TrustView",
    "TuneBody",
    "TuneMissesBody",
]
