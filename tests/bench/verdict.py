"""What a benchmark in Python reached beside its bar, as verdict.h prints it for those in C++."""


def verdict(what, reached, bar, unit="", at_least=False):
    """Print both. 1, a program's exit status: the bar was missed. A bar of 0 is none, and prints nothing."""
    if bar == 0:
        return 0
    is_held = reached >= bar if at_least else reached <= bar
    print(f"bar: {what} at {'least' if at_least else 'most'} {f'{bar:g} {unit}'.strip()}: {reached:.3f}, {'held' if is_held else 'MISSED'}", flush=True)
    return 0 if is_held else 1
