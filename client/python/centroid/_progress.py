"""What the local cluster shows while it trains and when it is done. Pure text: nothing here knows processes or sockets."""

import shutil
import time

PLAIN_INTERVAL_SECONDS = 2.0  # between lines when the output is no terminal


def count(value):
    """1234567 -> 1,234,567"""
    return f"{value:,.0f}"


def seconds(value):
    """7.31 -> 7.3 s; 187 -> 3 min 07 s"""
    if value < 1:
        return f"{value * 1000:.1f} ms"
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value) // 60} min {int(value) % 60:02d} s"


def size(value):
    """2306867 -> 2.2 MiB"""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def percent(value):
    return f"{100 * value:.2f} %"


def bar(share, width, blocks):
    """A bar of `width` cells, `share` of them full; `blocks` are the full and the empty cell."""
    full = round(max(0.0, min(1.0, share)) * width)
    return blocks[0] * full + blocks[1] * (width - full)


def fields(view, eta):
    """The parts of a progress line, most important first."""
    parts = [f"epoch {view['epoch']}/{view['epochs']}"]
    if view.get("loss", 0) > 0:
        parts.append(f"loss {view['loss']:.4f}")
        parts.append(f"train accuracy {percent(view.get('train_accuracy', 0))}")
    if view.get("samples_per_second", 0) > 0:
        parts.append(f"{count(view['samples_per_second'])} samples/s")
    if eta is not None:
        parts.append(f"{seconds(eta)} left")
    return parts


def line(view, eta, width, blocks):
    """One line of at most `width` columns: fields that do not fit are dropped from the end, the bar takes what is left."""
    parts = fields(view, eta)
    least_bar = 10
    while len(parts) > 1 and len("  ".join(parts)) + 2 + least_bar > width:
        parts.pop()
    text = "  ".join(parts)
    room = min(40, width - len(text) - 2)
    return f"{bar(view['progress'], room, blocks)}  {text}" if room >= least_bar else text[:width]


class Progress:
    """Shows cluster views as they come: one redrawn line on a terminal, else a line per epoch or every two seconds."""

    def __init__(self, stream):
        self.stream = stream
        self.is_terminal = stream.isatty()
        encoding = (getattr(stream, "encoding", None) or "").lower()
        self.blocks = "█░" if encoding.startswith("utf") else "#-"
        self.started = None  # (time, progress) of the first view that had moved
        self.shown = ""
        self.last_plain = 0.0

    def eta(self, view, now):
        progress = view["progress"]
        if self.started is None or not 0 < progress < 1 or progress <= self.started[1]:
            return None
        return (1 - progress) * (now - self.started[0]) / (progress - self.started[1])

    def show(self, view):
        now = time.monotonic()
        if self.started is None and view["progress"] > 0:
            self.started = (now, view["progress"])
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write("\r\033[K" + line(view, self.eta(view, now), width, self.blocks))
            self.stream.flush()
            self.shown = "line"
        elif now - self.last_plain >= PLAIN_INTERVAL_SECONDS:
            self.last_plain = now
            self.say("  ".join(fields(view, self.eta(view, now))))

    def say(self, text):
        """A whole line of its own, above the redrawn one."""
        self.clear()
        self.stream.write(text + "\n")
        self.stream.flush()

    def clear(self):
        if self.shown:
            self.stream.write("\r\033[K")
            self.stream.flush()
            self.shown = ""


def table(header, rows):
    """Lines of a table: the first column to the left, the others to the right."""
    columns = [list(column) for column in zip(header, *rows)]
    widths = [max(len(cell) for cell in column) for column in columns]
    return [
        "  ".join(cell.ljust(width) if k == 0 else cell.rjust(width) for k, (cell, width) in enumerate(zip(row, widths)))
        for row in [header, *rows]
    ]


def uses_codec(worker):
    compression = worker.get("compression", {})
    return any(compression.get(name, "f32") != "f32" for name in ("codec", "codec_down"))


def times(worker, name):
    """How many times shorter than float32 its gradients or its results were; 19.83 -> 19.8 x"""
    return f"{worker.get('compression', {}).get(name, 1):.1f} x"


def worker_table(workers):
    """Lines that say what every worker did, by name, from the workers' summaries."""
    header = ["worker", "rounds", "samples", "mean step", "computing", "waiting", "bytes out", "bytes in"]
    is_compressed = any(uses_codec(worker) for worker in workers)
    if is_compressed:
        header += ["shorter out", "shorter in"]
    rows = [
        (
            worker["name"],
            count(worker["rounds"]),
            count(worker["samples"]),
            seconds(worker["step_seconds"]),
            seconds(worker["compute_seconds"]),
            seconds(worker["wait_seconds"]),
            size(worker["bytes_out"]),
            size(worker["bytes_in"]),
            *((times(worker, "ratio_out"), times(worker, "ratio_in")) if is_compressed else ()),
        )
        for worker in sorted(workers, key=lambda worker: worker["name"])
    ]
    return table(header, rows)
