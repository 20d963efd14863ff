"""Human-readable numbers: counts, durations, bytes."""


def counted(number: int, noun: str) -> str:
    """Format a number and its noun, in the plural where needed: '1 image', '1,200 images'."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def duration(seconds: float) -> str:
    """Format a duration in the largest units that matter: '12 s', '2 h 10 min'."""
    if seconds < 90:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def duration_range(shortest: float, longest: float) -> str:
    """Format a range of durations in seconds, or one duration if the ends hardly differ: '2 min to 5 min'."""
    low, high = duration(shortest), duration(longest)
    return low if low == high or longest < 1.05 * shortest else f"{low} to {high}"


def clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds: '1:05:09'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def in_bytes(count: int) -> str:
    """Format a number of bytes in binary units: '40.0 GiB'."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"
