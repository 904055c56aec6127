"""A picture in, a picture out: finds faces with a real model and draws them.

    python examples/find_faces.py [PICTURE] [--output faces.png] [--device NAME ...]

The model is MediaPipe's short-range face detector (128x128, 896 anchors): each anchor has a score and 16 numbers, a box
and six key points relative to the anchor. Anchors, decoding and suppression are the model's published post-processing.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageOps

import nnhal
from nnhal import zoo

SIZE = 128
LAYERS = ((16, 2), (8, 6))  # cells a side, anchors a cell
THRESHOLD, OVERLAP = 0.5, 0.3


def anchors() -> np.ndarray:
    """Centres of all anchors as (x, y) in 0 to 1."""
    found = []
    for cells, count in LAYERS:
        y, x = np.mgrid[0:cells, 0:cells]
        centres = np.stack([x + 0.5, y + 0.5], -1).reshape(-1, 2) / cells
        found.append(np.repeat(centres, count, 0))
    return np.concatenate(found)


def decode(numbers: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
    """Faces: score, box (x0, y0, x1, y1) and key points, in 0 to 1 of the square input."""
    scores = 1 / (1 + np.exp(-scores.reshape(-1).clip(-80, 80)))
    keep = np.argsort(-scores)[: int((scores > THRESHOLD).sum())]
    points = numbers.reshape(-1, 8, 2)[keep] / SIZE
    points[:, [0, 2, 3, 4, 5, 6, 7]] += anchors()[keep][:, None]
    low, high = points[:, 0] - points[:, 1] / 2, points[:, 0] + points[:, 1] / 2
    faces: list[dict[str, Any]] = []
    for at, score in enumerate(scores[keep]):
        box = np.concatenate([low[at], high[at]])
        if all(overlap(box, face["box"]) < OVERLAP for face in faces):
            faces.append({"score": float(score), "box": box, "points": points[at, 2:]})
    return faces


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two boxes."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = np.prod(sides.clip(0))
    return float(shared / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - shared))


def draw(picture: Image.Image, faces: list[dict[str, Any]], to_picture: Any) -> Image.Image:
    """The picture with a box, key points and score for each face."""
    canvas = ImageDraw.Draw(picture)
    width = max(2, picture.width // 200)
    for face in faces:
        corners = to_picture(face["box"].reshape(2, 2))
        canvas.rectangle([*corners[0], *corners[1]], outline="#00e676", width=width)
        canvas.text(
            (corners[0][0], corners[0][1] - max(17, 6 * width)),
            f"{face['score']:.0%}",
            fill="#00e676",
            font_size=max(14, 5 * width),
        )
        for x, y in to_picture(face["points"]):
            canvas.ellipse([x - width, y - width, x + width, y + width], fill="#ff4081")
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, help="default: a portrait out of a package")
    parser.add_argument("--output", type=Path, default=Path("faces.png"))
    parser.add_argument("--device", action="append", help="use only these devices")
    arguments = parser.parse_args()

    path = zoo.path("face_detection_short_range", progress=print)
    photo = arguments.picture or zoo.path("picture_person", progress=print)
    picture = ImageOps.exif_transpose(Image.open(photo)).convert("RGB")
    model = nnhal.load(path)
    compiled = nnhal.compile(model, devices=arguments.device)

    square = ImageOps.pad(picture, (SIZE, SIZE))
    pixels = (np.asarray(square, np.float32) / 127.5 - 1)[None]
    results, report = compiled.run({compiled.inputs[0].name: pixels}, measure=True)
    numbers, scores = sorted(results.values(), key=lambda array: -array.size)
    faces = decode(numbers, scores)

    longest = max(picture.size)
    margin = (longest - np.array(picture.size)) / 2
    draw(picture, faces, lambda points: [tuple(p) for p in points * longest - margin]).save(arguments.output)

    print(f"Picture: {photo} ({picture.width}x{picture.height})")
    print(f"Model: {path.name}, {len(model.main.operations)} operations; {compiled.placement.summary()}")
    print(
        f"Found {len(faces)} face{'s' * (len(faces) != 1)} in {sum(step.total for step in report.steps) / 1e6:.2f} ms:"
    )
    for face in faces:
        x0, y0, x1, y1 = (face["box"].reshape(2, 2) * longest - margin).reshape(-1)
        print(f"  {face['score']:.1%} at x {x0:.0f} to {x1:.0f}, y {y0:.0f} to {y1:.0f}")
    print(f"Wrote {arguments.output}")


if __name__ == "__main__":
    main()
