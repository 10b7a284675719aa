#!/usr/bin/env python3
"""Makes small pictures of odd sizes, modes and formats, and records what Pillow and the published preprocessing make of them: the truth of
tests/media/recorded_images_test.cc.

    python3 -m venv VENV && VENV/bin/pip install pillow==12.0.0 numpy==2.4.6
    VENV/bin/python tools/record_images.py

Writes tests/data/images/NAME and tests/data/images.json: for each picture its size, the FNV-1a digest of the pixels that Pillow decodes (RGB, RGBA
where something may be transparent, CMYK), the grid of patches, the digest of the resized RGB pixels and of pixel_values in F32, and a few values.
"""

import io
import json
import math
import pathlib

import numpy as np
from PIL import Image, ImageOps

FOLDER = pathlib.Path(__file__).parent.parent / "tests" / "data"
PATCH, MERGE, SIDE_LIMIT = 14, 2, 512
ORIENTATION = 0x0112


def fnv1a(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def colours(width, height, channels=3, seed=1):
    """Waves and an edge: smooth, so that files stay small, with values near 0 and 255 and steps that overshoot."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = []
    for c in range(channels):
        wave = 127.5 + 140 * np.sin((x * (c + 1) + y * (seed + 1)) / (5 + seed + c))
        planes.append(np.where((x + c) // 7 % 3 == 1, 255 - wave, wave))
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def pictures():
    """(name, in_patch_limits, bytes)"""

    def saved(image, kind, **options):
        out = io.BytesIO()
        image.save(out, kind, **options)
        return out.getvalue()

    rgb = Image.fromarray(colours(37, 30))
    rgba = Image.fromarray(colours(33, 29, 4, seed=2))
    grey = rgb.convert("L")
    grey_alpha = Image.fromarray(colours(29, 41, 2, seed=3)[..., :2])
    palette = rgb.quantize(23)
    deep = Image.fromarray((np.arange(33 * 21, dtype=np.uint16).reshape(21, 33) * 3 % 700))
    cmyk = Image.fromarray(colours(40, 28, 4, seed=4), "CMYK")

    def oriented(image, kind, orientation, **options):
        exif = image.getexif()
        exif[ORIENTATION] = orientation
        return saved(image, kind, exif=exif, **options)

    yield "rgb.png", [65536, 3, 1], saved(rgb, "PNG")
    yield "rgb_interlaced.png", [65536], adam7(colours(19, 13))
    yield "rgb_key.png", [65536], saved(rgb, "PNG", transparency=rgb.getpixel((3, 3)))
    yield "rgba.png", [65536, 3], saved(rgba, "PNG")
    yield "grey.png", [3], saved(grey, "PNG")
    yield "grey_key.png", [65536], saved(grey, "PNG", transparency=grey.getpixel((0, 0)))
    yield "grey_1bit.png", [65536], saved(grey.convert("1"), "PNG")
    yield "grey_16.png", [65536], saved(deep, "PNG")
    yield "grey_alpha.png", [2], saved(grey_alpha, "PNG")
    yield "palette.png", [3], saved(palette, "PNG")
    yield "palette_4bit.png", [65536], saved(rgb.quantize(9), "PNG")
    yield "palette_alpha.png", [65536], saved(palette, "PNG", transparency=bytes(range(0, 230, 10)))
    yield "rgb_16.png", [65536], png16(colours(17, 11))
    yield "turned.png", [65536], oriented(rgb, "PNG", 6)
    yield "one_pixel.png", [65536], saved(Image.new("RGB", (1, 1), (9, 80, 200)), "PNG")
    yield "wide.png", [65536], saved(Image.fromarray(colours(700, 1)), "PNG")
    yield "exact_tokens.png", [65536], saved(Image.fromarray(colours(28, 28)), "PNG")
    yield "photo.jpg", [65536], saved(rgb, "JPEG", quality=80)
    yield "photo_shrunk.jpg", [4], saved(Image.fromarray(colours(71, 45, seed=5)), "JPEG", quality=60)
    yield "progressive.jpg", [65536], saved(rgb, "JPEG", quality=70, progressive=True)
    yield "full_colour.jpg", [65536], saved(rgb, "JPEG", quality=90, subsampling=0)
    yield "grey.jpg", [3], saved(grey, "JPEG")
    yield "cmyk.jpg", [2], saved(cmyk, "JPEG", quality=90)
    for orientation in (2, 3, 4, 5, 6, 7, 8):
        yield f"turned_{orientation}.jpg", [65536], oriented(Image.fromarray(colours(23, 10)), "JPEG", orientation, quality=50)
    yield "lossy.webp", [65536], saved(rgb, "WEBP", quality=60)
    yield "lossless.webp", [2], saved(rgb, "WEBP", lossless=True)
    yield "alpha.webp", [3], saved(rgba, "WEBP", quality=70)
    yield "turned.webp", [65536], oriented(rgb, "WEBP", 8, quality=50)
    yield "plain.gif", [65536], saved(palette, "GIF")
    yield "grey.gif", [3], saved(grey, "GIF")
    yield "transparent.gif", [65536], saved(palette, "GIF", transparency=3)
    yield "animated.gif", [65536], saved(palette, "GIF", save_all=True, append_images=[rgb.rotate(180).quantize(17)])
    yield "rgb.bmp", [65536], saved(Image.fromarray(colours(21, 9)), "BMP")
    yield "palette.bmp", [65536], saved(Image.fromarray(colours(21, 9)).quantize(12), "BMP")
    yield "grey.bmp", [65536], saved(Image.fromarray(colours(21, 9)).convert("L"), "BMP")
    yield "one_bit.bmp", [65536], saved(Image.fromarray(colours(21, 9)).convert("1"), "BMP")
    yield "rgba.bmp", [65536], saved(Image.fromarray(colours(13, 9, 4)), "BMP")


def png(width, height, depth, colour, interlaced, rows):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows), 9)) + chunk(b"IEND", b"")


def png16(pixels):
    """The same colours with 16 bits: the low byte is noise that goes away."""
    height, width, _ = pixels.shape
    deep = (pixels.astype(np.uint16) << 8 | (pixels.astype(np.uint16) * 7 + 3) % 256).astype(">u2")
    return png(width, height, 16, 2, False, [deep[y].tobytes() for y in range(height)])


def adam7(pixels):
    rows = []
    for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = pixels[y::dy, x::dx]
        rows += [row.tobytes() for row in part if part.shape[1]]
    return png(pixels.shape[1], pixels.shape[0], 8, 2, True, rows)


def decoded(data):
    """As decode_image gives it."""
    image = Image.open(io.BytesIO(data))
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode == "CMYK":
        return image
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def preprocessed(image, patch_limit):
    w, h = image.size
    scale = min(1.0, math.sqrt(patch_limit / (max(1.0, w // PATCH) * max(1.0, h // PATCH))), SIDE_LIMIT * PATCH / w, SIDE_LIMIT * PATCH / h)
    nw, nh = (min(max(1, int(side * scale)), SIDE_LIMIT * PATCH) for side in (w, h))
    image = image.resize((nw, nh), Image.Resampling.BICUBIC)
    if image.mode == "RGBA":
        rgba = np.asarray(image).astype(np.float64)
        y, x = np.mgrid[0:nh, 0:nw]
        background = np.where((y // 8 + x // 8) % 2 == 0, 255.0, 180.0)[..., None]
        alpha = rgba[..., 3:] / 255.0
        resized = (alpha * rgba[..., :3] + (1 - alpha) * background).astype(np.uint8)
    else:
        resized = np.asarray(image.convert("RGB"))
    token = PATCH * MERGE
    padded = np.pad(resized, ((0, -nh % token), (0, -nw % token), (0, 0)))
    values = (padded.astype(np.float32) / np.float32(255) - np.float32(0.5)) * np.float32(2)
    rows, columns = padded.shape[0] // PATCH, padded.shape[1] // PATCH
    patches = values.reshape(rows, PATCH, columns, PATCH, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, PATCH, PATCH)
    return resized, np.ascontiguousarray(patches), (rows, columns)


def main():
    (FOLDER / "images").mkdir(parents=True, exist_ok=True)
    records = []
    for name, limits, data in pictures():
        (FOLDER / "images" / name).write_bytes(data)
        image = decoded(data)
        for limit in limits:
            resized, patches, grid = preprocessed(image, limit)
            records.append({
                "name": name, "in_patch_limit": limit, "mode": image.mode, "width": image.width, "height": image.height,
                "decoded": fnv1a(image.tobytes()), "resized_width": resized.shape[1], "resized_height": resized.shape[0],
                "resized": fnv1a(resized.tobytes()), "grid": list(grid), "pixel_values": fnv1a(patches.tobytes()),
                "middle": [int(v) for v in resized[resized.shape[0] // 2, resized.shape[1] // 2]],
            })
    text = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    (FOLDER / "images.json").write_text(f'{{"pillow": "{Image.__version__}", "images": [\n{text}\n]}}\n')
    total = sum(len(data) for _, _, data in pictures())
    print(f"{len(records)} pictures, {total} bytes")


if __name__ == "__main__":
    main()
