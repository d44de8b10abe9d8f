"""Of what catalog.py is made: panels, dashboards, alerts, and queries in PromQL."""

import dataclasses

SERIES, STAT, BARS = "timeseries", "stat", "stacked"


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    text: str  # what it shows and what a bad value means
    unit: str  # of Grafana: s, bytes, Bps, ops, percentunit, short, none, dateTimeFromNow
    queries: tuple  # of (PromQL, legend)
    kind: str = SERIES
    width: int = 8  # of 24
    bounds: tuple = ()  # of (from value, colour) for a STAT


@dataclasses.dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    text: str
    rows: tuple  # of (title, panels)


@dataclasses.dataclass(frozen=True)
class Alert:
    name: str
    value: str  # PromQL; the alert is `value condition`
    condition: str
    wait: str  # how long it must be so
    severity: str  # critical: training stands still or data may be lost; warning: look at it this day
    summary: str
    do: str  # the runbook


def quantile(q, metric, by=""):
    """Quantile of a histogram, over all series or by one label."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{SELECT}}[RATE])))"


def mean(metric, by):
    """Mean of a histogram by labels."""
    return f"sum by ({by}) (rate({metric}_sum{{SELECT}}[RATE])) / (sum by ({by}) (rate({metric}_count{{SELECT}}[RATE])) > 0)"


def rate(metric, by="", more=""):
    labels = f" by ({by})" if by else ""
    return f"sum{labels} (rate({metric}{{SELECT{more}}}[RATE]))"


def leading(metric):
    """Of the server that leads, or is alone: a standby has numbers of its own, and those of the time when it led."""
    return f"{metric}{{SELECT}} and on (job, run, instance) (centroid_server_is_leader{{SELECT}} == 1)"
