"""The axes of the matrix: the devices that have an engine, all devices, and where their drivers run."""

from nnhal.runtime import discovery

INSTALLED = {found.name: found.device for found in discovery.found_with_engines() if found.device is not None}
ENGINES = [name for name in INSTALLED if name != "reference"]
DEVICES = ["reference", *ENGINES]
ISOLATION = ["none", "process"]
