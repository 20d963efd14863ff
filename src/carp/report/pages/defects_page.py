"""A page about advice: its text, and examples of every defect that was found."""

from pathlib import Path

from carp.advice.outcome import Advice
from carp.errors import UnreadableImageError
from carp.images.source import Source, read
from carp.report.pages.template import shown_pictures, write_page
from carp.report.pages.thumbnails import Picture, thumbnail


def write_defects_page(path: Path, advice: Advice, source: Source) -> None:
    """Write an HTML page with the worst images of every kind."""
    groups = [
        (
            f"{issue.name}: {issue.count:,} ({issue.share:.1%}; {issue.rule})",
            shown_pictures(
                [_picture(source, index, place) for index, place in zip(issue.indices, issue.examples, strict=True)]
            ),
        )
        for issue in advice.findings.issues
        if issue.count
    ]
    title = f"Advice for {advice.findings.name}: {advice.recommendation.headline}"
    write_page(path, "sheet.html", title=title, notes=[line for line in advice.lines() if line], groups=groups)


def _picture(source: Source, index: int, place: str) -> Picture:
    try:
        image = thumbnail(read(source, index))
    except UnreadableImageError:  # it could be read when it was measured
        image = None
    return Picture(image, lines=(source.short_name(index),), file=place)
