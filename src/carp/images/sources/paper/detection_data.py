"""VOC 2007 and 2012 with boxes, as the paper's detection uses them: a row like those of the labelled datasets.

`dataset:voc0712` opens nothing, because detection reads the folder itself.
"""

from pathlib import Path
from types import MappingProxyType

from carp.files.regular import read_text
from carp.images.sources.paper.paper_datasets import VOC0712_SIZES, Dataset, Presence, Split

_LISTS = {"train": (("2007", "trainval"), ("2012", "trainval")), "test": (("2007", "test"),)}
_CODE = (
    "from torchvision.datasets import VOCDetection as D; "
    "[D('ROOT', year=y, image_set=s, download=True) for y, s in "
    "[('2007', 'trainval'), ('2007', 'test'), ('2012', 'trainval')]]"
)
VOC0712 = Dataset(
    "voc0712", "VOC07+12", "VOCDetection",
    Split("trainval", MappingProxyType({}), VOC0712_SIZES[0]), Split("test", MappingProxyType({}), VOC0712_SIZES[1]),
    classes=20, metric="mAP", paper_metric="mAP", protocols=(), gigabytes=2.8,
    marker="VOCdevkit", download=False, layout="voc", how=f'python -c "{_CODE}"',
)  # fmt: skip


def look_for_boxes(root: Path) -> Presence:
    """Look for the lists of both years below `root`, and count the images that they name."""
    if not (root / VOC0712.marker).is_dir():
        return Presence("absent")
    for part, lists in _LISTS.items():
        files = [root / VOC0712.marker / f"VOC{year}" / "ImageSets" / "Main" / f"{word}.txt" for year, word in lists]
        missing = [file for file in files if not file.is_file()]
        if missing:
            return Presence("absent", reason=f"there is no {missing[0]}")
        try:
            found = sum(bool(line.strip()) for file in files for line in read_text(file).splitlines())
        except (OSError, UnicodeDecodeError) as error:
            return Presence("broken", reason=f"cannot read the lists of the {part} images: {error}")
        if found != VOC0712.images(part):
            return Presence("broken", reason=f"the lists name {found:,} {part} images, not {VOC0712.images(part):,}")
    return Presence("present", str(root), str(root))
