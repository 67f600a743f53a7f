"""Tensors that lie in several processes, as files: torch's distributed checkpoint (DCP).

A file for each process and `.metadata`, which says where each piece of each tensor is. They can be
read by any number of processes. Sizes and checksums stand beside them (`sums`), and the metadata,
which torch pickles, are unpickled with the few classes only that belong there.
"""

from __future__ import annotations

import enum
import pickle
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

__all__ = [
    "METADATA", "MODEL", "OPTIMISER", "check_sums", "read_into", "read_whole", "shapes", "sum_of",
    "write",
]  # fmt: skip

METADATA = ".metadata"
MODEL, OPTIMISER = "model", "optimiser"
"""What the names of tensors begin with."""
ALLOWED = {
    "torch": None,
    "torch.distributed.checkpoint.metadata": None,
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}
"""Modules whose names may stand in the metadata; of torch only number types and sizes."""

Shape = tuple[tuple[int, ...], torch.dtype]


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Collective: every process writes what lies there.

    Raises:
        OSError, ...: what one of them has met.
    """
    try:
        dcp.save(dict(tensors), storage_writer=FileSystemWriter(folder))
    except dcp.api.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def sum_of(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return size, crc


def check_sums(folder: Path, sums: Mapping[str, Sequence[int]], names: Sequence[str]) -> None:
    """Raises ValueError for a file (one of `names`) that is not what was written."""
    for name in names:
        if sum_of(folder / name) != tuple(sums[name]):
            raise ValueError(f"{name} is not as it was written")


def shapes(folder: Path) -> dict[str, Shape]:
    """Of every tensor that the files hold."""
    found = Reader(folder).read_metadata().state_dict_metadata
    return {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in found.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read_into(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Collective: fills what lies here of each tensor."""
    dcp.load(dict(tensors), storage_reader=Reader(folder))


def read_whole(folder: Path, device: torch.device) -> dict[str, Tensor]:
    """All of them whole, in this process alone."""
    tensors = {
        name: torch.empty(size, dtype=dtype, device=device)
        for name, (size, dtype) in shapes(folder).items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one process: it is meant
        dcp.load(dict(tensors), storage_reader=Reader(folder), no_dist=True)
    return tensors


class Reader(FileSystemReader):
    """Torch's, but for the unpickler."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / METADATA).open("rb") as file:
            metadata = Unpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"{METADATA} holds something else")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class Unpickler(pickle.Unpickler):
    """Of what is no plain value, takes only what DCP's metadata are made of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        names = ALLOWED.get(module, set())
        found = super().find_class(module, name) if names is None or name in names else None
        if module == "torch" and not (isinstance(found, torch.dtype) or found is torch.Size):
            found = None
        if found is None:
            raise pickle.UnpicklingError(f"{METADATA} asks for {module}.{name}")
        return found


def _member(cls: Any, name: str) -> Any:
    """`getattr` as Python 3.11.0 to 3.11.3 writes the members of an enumeration, and no more."""
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise pickle.UnpicklingError(f"{METADATA} asks for {name} of {cls!r}")
    return cls[name]
