"""The report: results as one HTML file that opens without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.web import html, results
from tilewright import __version__
from tilewright.schema.device import DeviceSpec
from tuner.store.records import utc_now
from tuner.store.reports.winners import Headline


def report(found: Sequence[Headline], devices: Mapping[str, DeviceSpec], title: str) -> str:
    """The results with their plots; scripts and styles are in the file."""
    roof = results.roofline(found, devices)
    charts = (results.payoff(found), roof.chart)
    return html.page(
        "report.html",
        title=title,
        charts={chart.name: chart for chart in charts},
        **results.summary(found),
        unknown=roof.unknown,
        made=utc_now(),
        version=__version__,
        csv_query="",
    )
