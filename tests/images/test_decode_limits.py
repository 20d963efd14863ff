"""Images that claim to be huge, or are, cost next to nothing; memory that is refused makes a bad image."""

import functools
import io
import os
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from carp.errors import UnreadableImageError
from carp.images.decoding import decode_limits
from carp.images.decoding.decode import decode, open_photo, pixel_limit, read_file, size_of
from carp.images.sources.tar_shards import TarSource

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8))
SIDE = 50_000


def encoded(kind: str, image: Image.Image = PICTURE, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *more: bytes) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = png_chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + data + png_chunk(b"IEND", b"")


def jpeg(width: int, height: int, **options: object) -> bytes:
    whole = encoded("JPEG", **options)
    marker = whole.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    return whole[: marker + 5] + struct.pack(">HH", height, width) + whole[marker + 9 :]


def webp(width: int, height: int) -> bytes:
    frames = [PICTURE, PICTURE.rotate(90)]
    whole = bytearray(encoded("WEBP", frames[0], save_all=True, append_images=frames[1:]))
    assert whole[12:16] == b"VP8X"
    whole[24:27], whole[27:30] = ((side - 1).to_bytes(3, "little") for side in (width, height))
    return bytes(whole)


def tiff(tags: dict[int, int]) -> bytes:
    """A TIFF whose tags (of one value each) are overwritten where they stand."""
    whole = bytearray(encoded("TIFF", compression="tiff_lzw"))
    start = int.from_bytes(whole[4:8], "little")
    for entry in range(int.from_bytes(whole[start : start + 2], "little")):
        place = start + 2 + 12 * entry
        tag = int.from_bytes(whole[place : place + 2], "little")
        if tag in tags:
            whole[place + 2 : place + 12] = struct.pack("<HII", 4, 1, tags[tag])
    return bytes(whole)


def tiled_tiff(side: int) -> bytes:
    """A TIFF of 24 × 24 pixels in one tile that claims to be far larger, as its tags allow."""
    strips = {278: 322, 273: 324, 279: 325}  # rows per strip, where strips are, their lengths; of tiles
    whole = bytearray(encoded("TIFF", compression="tiff_lzw"))
    start = int.from_bytes(whole[4:8], "little")
    count = int.from_bytes(whole[start : start + 2], "little")
    entries = [bytes(whole[start + 2 + 12 * i : start + 14 + 12 * i]) for i in range(count)]
    made = []
    for entry in entries:
        tag, value = int.from_bytes(entry[:2], "little"), entry[8:12]
        if tag == 278:
            made += [struct.pack("<HHII", 322, 4, 1, side), struct.pack("<HHII", 323, 4, 1, side)]
        else:
            made.append(struct.pack("<H", strips.get(tag, tag)) + entry[2:8] + value)
    made.sort(key=lambda entry: int.from_bytes(entry[:2], "little"))
    directory = struct.pack("<H", len(made)) + b"".join(made) + bytes(4)
    return bytes(whole[:4]) + struct.pack("<I", len(whole)) + bytes(whole[8:]) + directory


def bmp(width: int, height: int) -> bytes:
    whole = bytearray(encoded("BMP"))
    whole[18:26] = struct.pack("<ii", width, height)
    return bytes(whole)


def gif(width: int, height: int) -> bytes:
    whole = bytearray(encoded("GIF"))
    whole[6:10] = struct.pack("<HH", width, height)
    return bytes(whole)


HUGE = {
    "png": png(SIDE, SIDE),
    "jpeg": jpeg(SIDE, SIDE),
    "progressive jpeg": jpeg(SIDE, SIDE, progressive=True),
    "animated webp": webp(SIDE, SIDE),
    "gif": gif(SIDE, SIDE),
    "bmp": bmp(SIDE, SIDE),
    "ppm": b"P6 %d %d 255\n" % (SIDE, SIDE) + bytes(100),
    "tiff": tiff({256: SIDE, 257: SIDE}),
    "tiff of huge tiles": tiled_tiff(40_000),
}


@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("read", [decode, open_photo, size_of])
def test_an_image_that_claims_to_be_huge_is_refused_by_its_head(kind, read):
    with pytest.raises(UnreadableImageError, match="max_image_pixels=") as error:
        read(HUGE[kind], "bomb")
    assert "×" in error.value.reason or "more pixels than" in error.value.reason


@pytest.mark.parametrize("kind", HUGE)
def test_the_limit_is_that_of_the_run(kind):
    small = encoded(next(word for word in kind.split() if word.upper() in {*Image.SAVE}))
    with pixel_limit(24 * 24 - 1), pytest.raises(UnreadableImageError, match="24×24"):
        size_of(small, "small")


def zeros(megabytes: int) -> bytes:
    """So many megabytes of zeros, compressed to a thousandth."""
    packer = zlib.compressobj(1)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(megabytes)), packer.flush()])


@functools.cache
def packed_chunks() -> dict[str, bytes]:
    """PNG files with a chunk of half a gigabyte, and with eight of a fifth of that."""
    return {
        "iCCP": png(24, 24, png_chunk(b"iCCP", b"x\0\0" + zeros(500))),
        "zTXt": png(24, 24, *[png_chunk(b"zTXt", b"x\0\0" + zeros(100))] * 8),
    }


def test_no_bomb_takes_memory(tmp_path: Path) -> None:
    """In a process of its own, whose peak is its own; a picture of 3 MB serves as the measure of what is normal."""
    bombs = {**HUGE, **packed_chunks()}
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
    script = """
        import resource, sys
        from pathlib import Path
        from carp.images.decoding.decode import decode, read_file
        from carp.errors import UnreadableImageError
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = peak()
        for path in sorted(Path(sys.argv[1]).iterdir()):
            try:
                decode(read_file(path), path.name)
            except UnreadableImageError:
                pass
            print(path.name, (peak() - before) // 1024)
        assert peak() - before < 120 * 1024, "MiB more than " + str(before // 1024)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == len(bombs)
    assert done.stderr == ""


def test_a_chunk_that_unpacks_to_half_a_gigabyte_does_not_spoil_or_stop_the_image():
    for name, content in packed_chunks().items():
        try:
            assert decode(content, name).shape == (24, 24, 3)
        except UnreadableImageError as error:
            assert error.reason


def test_a_jpeg_of_thousands_of_scans_is_refused():
    whole = encoded("JPEG", progressive=True)
    scan = whole.index(b"\xff\xda")
    many = whole[:scan] + whole[scan:-2] * 2000 + whole[-2:]
    with pytest.raises(UnreadableImageError, match="scans"):
        decode(many, "slow")


def test_a_sparse_image_file_of_40_gib_is_a_bad_image(tmp_path):
    path = tmp_path / "huge.jpg"
    with path.open("wb") as file:
        file.truncate(40 << 30)
    with pytest.raises(UnreadableImageError, match=r"40\.0 GiB.*max_image_pixels"):
        read_file(path)


def test_the_limit_of_bytes_leaves_room_for_every_image_within_the_limit_of_pixels():
    deep = Image.fromarray(np.zeros((64, 64), dtype=np.float32))
    with pixel_limit(64 * 64):
        assert decode(encoded("TIFF", deep), "deep").shape == (64, 64, 3)
        assert decode_limits.bytes_allowed() > 8 * 64 * 64


def test_a_member_of_a_shard_that_is_too_large_is_a_bad_image(tmp_path):
    shard = tmp_path / "a.tar"
    size = 4 << 30
    header = bytearray(512)
    header[:5], header[100:107], header[156:157] = b"a.jpg", b"0000644", b"0"
    header[124:136] = b"%011o\0" % size
    header[257:265] = b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with shard.open("wb") as file:
        file.write(header)
        file.seek(512 + size)
        file.write(bytes(1024))
    source = TarSource([shard], name="a.tar")
    with pytest.raises(UnreadableImageError, match=r"4\.0 GiB.*max_image_pixels"):
        source.fetch(0)


# Memory


def test_an_image_that_needs_more_than_half_of_the_free_memory_is_a_bad_image(monkeypatch):
    side = 4100
    stored = encoded("PNG", Image.new("RGB", (side, side)))
    assert decode(stored, "large").shape == (side, side, 3)
    monkeypatch.setattr("carp.compute.device.available_memory", lambda _device: 200 << 20)
    with pytest.raises(UnreadableImageError, match=r"needs about 112\.2 MiB.*200\.0 MiB"):
        decode(stored, "large")
    small = encoded("PNG", PICTURE)
    assert decode(small, "small").shape == (24, 24, 3)


def test_a_large_jpeg_may_be_had_at_a_reduced_size_where_it_does_not_fit_whole(monkeypatch):
    photo = open_photo(encoded("JPEG", Image.new("RGB", (4104, 4104))), "large")
    monkeypatch.setattr("carp.compute.device.available_memory", lambda _device: 100 << 20)
    assert photo.pixels(8).shape == (513, 513, 3)
    with pytest.raises(UnreadableImageError, match=r"96\.4 MiB"):
        photo.pixels(1)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_memory_that_is_refused_makes_a_bad_image(kind, monkeypatch):
    def refused(*_args: object, **_options: object) -> None:
        raise MemoryError

    photo = open_photo(encoded(kind), "image") if kind == "jpeg" else None
    monkeypatch.setattr("carp.images.decoding.decode.simplejpeg.decode_jpeg", refused)
    monkeypatch.setattr("carp.images.decoding.decode.pillow_pixels", refused)
    with pytest.raises(UnreadableImageError, match="memory"):
        photo.pixels(1) if photo else decode(encoded(kind), "image")


def test_large_images_are_decoded_in_a_forked_process_while_a_thread_decodes_one():
    with decode_limits._state.large:
        child = os.fork()
        if child == 0:
            with decode_limits.room_for(1 << 25, 0, "image"):
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1", "CMYK", "I;16", "I", "F"])
def test_conversion_in_bands_gives_the_bytes_of_conversion_at_once(mode, monkeypatch):
    rng = np.random.default_rng(1)
    picture = Image.fromarray(rng.integers(0, 256, (70, 50, 3), dtype=np.uint8))
    if mode == "I;16":
        picture = Image.fromarray(rng.integers(0, 65536, (70, 50), dtype=np.uint16))
    elif mode in {"RGBA", "LA"}:
        picture = picture.convert(mode)
        picture.putalpha(Image.fromarray(rng.integers(0, 256, (70, 50), dtype=np.uint8)))
    else:
        picture = picture.convert(mode)
    stored = encoded("TIFF", picture)
    whole = decode(stored, mode)
    monkeypatch.setattr("carp.images.decoding.pillow_pixels._BAND", 128)
    np.testing.assert_array_equal(decode(stored, mode), whole)


def test_transparency_of_one_colour_stays_white_in_bands(monkeypatch):
    picture = PICTURE.quantize(8)
    stored = encoded("PNG", picture, transparency=3)
    whole = decode(stored, "one")
    assert (whole == 255).all(axis=2).any()
    monkeypatch.setattr("carp.images.decoding.pillow_pixels._BAND", 30)
    np.testing.assert_array_equal(decode(stored, "one"), whole)


def test_floats_that_are_not_finite_give_bytes_and_no_warning(recwarn):
    values = np.array([[np.inf, -np.inf], [np.nan, 3e38]], dtype=np.float32)
    assert decode(encoded("TIFF", Image.fromarray(values)), "floats").shape == (2, 2, 3)
    assert not recwarn.list


def test_a_file_that_would_run_a_program_is_not_an_image():
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(UnreadableImageError, match="not an image"):
        decode(script, "script.jpg")
    assert PngImagePlugin.MAX_TEXT_CHUNK <= 1 << 20  # what bounds the chunks of text
