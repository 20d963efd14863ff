"""Damaged images of every format that is installed: each is decoded or reported, and the command ends."""

import binascii
import importlib.util
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, features

from carp.images.sources.folder import SUFFIXES
from tests.fuzz.case import BUDGET, IN, OUT, Case, Outcome, Target
from tests.fuzz.mutate import mutate
from tests.fuzz.valid import Valid
from tests.helpers import tiny_images

_LARGE = 2 * BUDGET  # without a recipe, an image may have 200 million pixels
_FEW = 3  # images in a folder that is checked
_ORIENTATION = 0x0112


def target(valid: Valid) -> Target:
    """Cases for `data check`, `views`, `embed`, `search` and `train`."""
    seeds = list(seed_images())
    by_suffix = {suffix: [data for other, data in seeds if other == suffix] for suffix, _ in seeds}
    run, recipe, images, index = valid.run, valid.recipe, valid.images, valid.index("exact")

    def damaged(rng: Random) -> tuple[str, bytes]:
        suffix, data = rng.choice(seeds)
        others = by_suffix[suffix] if rng.random() < 0.9 else [data for _, data in seeds]
        data = _false_size(rng, data) if rng.random() < 0.1 else mutate(rng, data, others)
        if data.startswith(b"\x89PNG") and rng.random() < 0.6:
            data = with_true_checksums(data)
        return suffix, data

    def case(rng: Random) -> Case:
        chance = rng.random()
        if chance < 0.62:
            files = {}
            for number in range(_FEW):
                suffix, data = damaged(rng)
                files[f"{IN}/{number}{suffix}"] = data
            words = ("data", "check", IN, "--json", "--recipe", str(recipe))
            return Case(words, files, "a folder", check=_all_accounted_for, codes=frozenset({0, 1, 2}))
        suffix, data = damaged(rng)
        name = f"{IN}/image{suffix}"
        if chance < 0.78:
            words = ("views", name, "--out", f"{OUT}/views.png", "--recipe", str(recipe), "--draws", "1")
            return Case(words, {name: data}, "one image")
        if chance < 0.87:
            words = ("embed", str(run), "--data", IN, "--out", f"{OUT}/features")
            return Case(words, {name: data}, "one image", budget=_LARGE)
        if chance < 0.95:
            words = ("search", str(index / "index"), name, "--json")
            return Case(words, {name: data}, "a query", budget=_LARGE)
        words = ("train", IN, "--recipe", str(recipe), "--out", f"{OUT}/run", "max_bad_share=0.5")
        return Case(words, {f"{IN}/good": images, name: data}, "one bad image of many", codes=frozenset({0}))

    return case


def _all_accounted_for(outcome: Outcome, folder: Path) -> str | None:
    """Every image is decoded or reported, and the exit code says which."""
    images = sum(path.suffix in SUFFIXES for path in (folder / IN).iterdir())
    if outcome.code == 2:
        return "no report at all" if images else None
    found = json.loads(outcome.stdout)
    broken = len(found["broken"])
    if broken + sum(found["formats"].values()) != images or found["looked_at"] != images:
        return f"{images} images, but {broken} broken and {found['formats']}"
    if (outcome.code == 0) != (broken == 0):
        return f"exit code {outcome.code} for {broken} broken images"
    return None


def with_true_checksums(png: bytes) -> bytes:
    """The chunks of a damaged PNG with checksums that fit, so that the damage is met further on."""
    parts, place = [png[:8]], 8
    while place + 12 <= len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        body = png[place + 4 : place + 8 + length]
        if len(body) < 4 + length:
            break
        parts.append(png[place : place + 4] + body + struct.pack(">I", binascii.crc32(body)))
        place += 12 + length
    return b"".join(parts) + png[place:]


def _false_size(rng: Random, data: bytes) -> bytes:
    """A width and a height in the head that the data do not fill."""
    width, height = (rng.choice((0, 1, 4096, 14_000, 40_000, 65_535, 2**31 - 1)) for _ in range(2))
    if data.startswith(b"\x89PNG"):
        return with_true_checksums(data[:16] + struct.pack(">II", width, height) + data[24:])
    if data.startswith(b"GIF8"):
        return data[:6] + struct.pack("<HH", width % 65536, height % 65536) + data[10:]
    if data.startswith(b"BM"):
        return data[:18] + struct.pack("<ii", width, height) + data[26:]
    if data.startswith(b"\xff\xd8"):
        for marker in (b"\xff\xc0", b"\xff\xc2"):
            if (place := data.find(marker)) > 0:
                size = struct.pack(">HH", height % 65536, width % 65536)
                return data[: place + 5] + size + data[place + 9 :]
    if data[:2] in {b"II", b"MM"}:
        order = "<" if data[:2] == b"II" else ">"
        for tag in (256, 257):  # width and height
            place = data.find(struct.pack(f"{order}H", tag))
            if place > 0:
                data = data[: place + 8] + struct.pack(f"{order}I", rng.choice((width, height))) + data[place + 12 :]
        return data
    return mutate(rng, data)


def seed_images() -> Iterator[tuple[str, bytes]]:
    """(suffix, bytes) of small images: every format, mode, compression and extra that readers treat apart."""
    noise = Image.fromarray(tiny_images(1, 24)[0])
    smooth = Image.fromarray(np.indices((20, 28)).sum(0).astype(np.uint8) * 5).convert("RGB")
    frames = [Image.fromarray(frame) for frame in tiny_images(2, 12, seed=4)]
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    for image in (noise, smooth):
        yield ".jpg", _saved(image, "JPEG", quality=80)
        yield ".png", _saved(image, "PNG")
        yield ".bmp", _saved(image, "BMP")
        yield ".gif", _saved(image, "GIF")
        yield ".webp", _saved(image, "WEBP", quality=60)
        yield ".tif", _saved(image, "TIFF")
        yield ".ppm", _saved(image, "PPM")
    yield ".jpg", _saved(smooth, "JPEG", progressive=True, exif=exif)
    yield ".jpg", _saved(smooth.convert("L"), "JPEG", icc_profile=b"not a profile" * 9, comment=b"hello")
    yield ".jpg", _saved(smooth.convert("CMYK"), "JPEG")
    yield ".jpg", _saved(frames[0], "MPO", save_all=True, append_images=[frames[1].copy()])
    yield ".png", _saved(smooth.convert("P"), "PNG", transparency=3)
    yield ".png", _saved(smooth.convert("RGBA"), "PNG", exif=exif)
    yield ".png", _saved(Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 160), "PNG")
    yield ".png", _saved(frames[0], "PNG", save_all=True, append_images=[frames[1].copy()])
    yield ".png", _saved(smooth.convert("1"), "PNG")
    yield ".gif", _saved(frames[0], "GIF", save_all=True, append_images=[frames[1].copy()], duration=20)
    yield ".webp", _saved(smooth.convert("RGBA"), "WEBP", lossless=True, exif=exif)
    yield ".webp", _saved(frames[0], "WEBP", save_all=True, append_images=[frames[1].copy()])
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        yield ".tif", _saved(smooth, "TIFF", compression=compression)
    yield ".tif", _saved(smooth.convert("1"), "TIFF", compression="group4")
    yield ".tif", _saved(frames[0], "TIFF", save_all=True, append_images=[frames[1].copy()])
    yield ".tif", _saved(Image.fromarray(np.linspace(0, 1, 200, dtype=np.float32).reshape(10, 20)), "TIFF")
    if features.check("avif"):
        yield ".avif", _saved(smooth, "AVIF", quality=50)
    if importlib.util.find_spec("pillow_heif"):
        import pillow_heif

        yield ".heic", _heif(pillow_heif.from_pillow(smooth))


def _saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.copy().save(file, form, **options)  # saving leaves options in an image, which other formats trip over
    return file.getvalue()


def _heif(image: object) -> bytes:
    file = io.BytesIO()
    image.save(file, quality=50)  # type: ignore[attr-defined]
    return file.getvalue()
