#!/usr/bin/env python3
"""Make the Grafana dashboards and the Prometheus alert rules from catalog.py.

Usage: generate.py [--check]     --check: exit status 1 when a committed file differs from what would be made
"""

import json
import pathlib
import sys

import catalog

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MATCHERS = 'job=~"$job",instance=~"$instance",run=~"$run"'
GRID_WIDTH, STAT_HEIGHT, SERIES_HEIGHT = 24, 4, 8


def filled(query):
    """The query as Grafana takes it."""
    return query.replace("SELECT", MATCHERS).replace("RATE", "$__rate_interval")


def targets(panel):
    return [
        {"refId": chr(ord("A") + k), "datasource": SOURCE, "expr": filled(query), "legendFormat": legend, "range": True}
        for k, (query, legend) in enumerate(panel.queries)
    ]


def field_config(panel):
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    if panel.kind == catalog.BARS:
        custom |= {"fillOpacity": 60, "lineWidth": 0, "stacking": {"mode": "normal", "group": "A"}}
    steps = [{"value": None, "color": "green"}] + [{"value": value, "color": colour} for value, colour in panel.bounds]
    defaults = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    return {"defaults": defaults | ({} if panel.kind == catalog.STAT else {"custom": custom}), "overrides": []}


def options(panel):
    if panel.kind == catalog.STAT:
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        query, legend = panel.queries[0]
        names = ("name" if query.endswith("== 1") else "value_and_name") if "{{" in legend else "value"
        return {"reduceOptions": reduce, "textMode": names, "colorMode": "value", "graphMode": "area"}
    return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}


def height_of(panel):
    return STAT_HEIGHT if panel.kind == catalog.STAT else SERIES_HEIGHT


def panel_json(number, panel, x, y, height):
    return {
        "id": number,
        "type": "stat" if panel.kind == catalog.STAT else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
        "fieldConfig": field_config(panel),
        "options": options(panel),
        "targets": targets(panel),
    }


def laid_out(dashboard):
    """Rows and panels from left to right, top to bottom."""
    result, y, number = [], 0, 0
    for title, panels in dashboard.rows:
        number += 1
        result.append({"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1}})
        y += 1
        for line in lines_of(panels):
            x, height = 0, max(map(height_of, line))
            for panel in line:
                number += 1
                result.append(panel_json(number, panel, x, y, height))
                x += panel.width
            y += height
    return result


def lines_of(panels):
    """Panels side by side, as many as fit."""
    lines, width = [[]], 0
    for panel in panels:
        if width + panel.width > GRID_WIDTH:
            lines.append([])
            width = 0
        lines[-1].append(panel)
        width += panel.width
    return lines


def query_variable(name, label, query):
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard_json(dashboard):
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
        query_variable("run", "Run", "label_values(centroid_build_info, run)"),
        query_variable("job", "Job", 'label_values(centroid_build_info{run=~"$run"}, job)'),
        query_variable("instance", "Instance", 'label_values(centroid_build_info{run=~"$run",job=~"$job"}, instance)'),
    ]
    annotation = {"name": "Membership", "datasource": SOURCE, "enable": True, "iconColor": "orange",
                  "expr": "changes(centroid_server_generation_number{%s}[$__rate_interval]) > 0" % MATCHERS, "titleFormat": "membership changed"}  # fmt: skip
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["centroid"],
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [annotation]},
        "links": [{"title": "Centroid", "type": "dashboards", "tags": ["centroid"], "asDropdown": False, "includeVars": True, "keepTime": True}],
        "templating": {"list": variables},
        "panels": laid_out(dashboard),
    }


MADE = "# Made by dashboards/generate.py from dashboards/catalog.py."


def rules_yaml(alerts):
    """The rules of Prometheus. Strings are written as JSON, which is YAML."""
    lines = ["groups:", "  - name: centroid", "    rules:"]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(f'{alert.value} {alert.condition}')}",
            f"        for: {alert.wait}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          runbook: {json.dumps(alert.do)}",
        ]
    return "\n".join(lines) + "\n"


def rule_object(alerts):
    """The same for the Prometheus operator."""
    head = ["apiVersion: monitoring.coreos.com/v1", "kind: PrometheusRule", "metadata:", "  name: centroid", "spec:"]
    return "\n".join(head) + "\n" + "".join(f"  {line}\n" for line in rules_yaml(alerts).splitlines())


def made_files():
    """Path of every file that is made, with its text."""
    for dashboard in catalog.DASHBOARDS:
        yield HERE / "grafana" / f"{dashboard.uid.removeprefix('centroid-')}.json", json.dumps(dashboard_json(dashboard), indent=1) + "\n"
    yield HERE / "prometheus" / "alerts.yaml", MADE + "\n" + rules_yaml(catalog.ALERTS)
    yield HERE / "prometheus" / "rule.yaml", MADE + "\n" + rule_object(catalog.ALERTS)


def main(arguments):
    status = 0
    for path, text in made_files():
        if arguments != ["--check"]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is not what dashboards/generate.py makes: run it and commit the result")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
