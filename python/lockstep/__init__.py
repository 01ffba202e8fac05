"""Compile, check, plan and train recipes of Lockstep; read its checkpoints and metrics as numpy arrays.

Ranks are threads of this process. Nothing is printed unless print_messages() or train(progress=True) asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ._lockstep import (
    Check,
    CheckpointFiles,
    Evaluation,
    Pass,
    Plan,
    PlannedOp,
    PlannedStage,
    Program,
    Recipe,
    Stage,
    Step,
    TensorInfo,
    TrainResult,
    UserError,
    evaluate,
    metrics_columns,
    print_messages,
    set_messages,
    train,
    use_gpu_module,
    version,
)

ml_dtypes: Any  # the package, if it is installed
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

__all__ = [
    "Check", "Checkpoint", "Evaluation", "Pass", "Plan", "PlannedOp", "PlannedStage", "Program", "Recipe", "Stage", "Step",
    "TensorInfo", "TrainResult", "UserError", "evaluate", "print_messages", "read_metrics", "set_messages", "train",
    "use_gpu_module",
]

__version__ = version()

if "LOCKSTEP_GPU_MODULE" in os.environ:
    use_gpu_module(os.environ["LOCKSTEP_GPU_MODULE"])

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8}


class Checkpoint(Mapping[str, "np.ndarray[Any, Any]"]):
    """The global tensors of a checkpoint by name, whatever layout wrote it: parameters, then states of the optimizer.

    `path`: a checkpoint's folder, a folder of checkpoints or a run's folder; of several the latest. A tensor is read when it is
    asked for, and every byte is checked. bfloat16 becomes ml_dtypes.bfloat16 if that package is there, else float32.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._files = CheckpointFiles(path)
        self._names = dict.fromkeys(self._files.names())

    @property
    def folder(self) -> str:
        return self._files.folder

    @property
    def step(self) -> int:
        return self._files.step

    @property
    def recipe(self) -> Recipe:
        """The recipe that it was trained with."""
        return self._files.recipe

    def info(self, name: str) -> TensorInfo:
        """Type and shape, without reading."""
        if name not in self._names:
            raise KeyError(name)
        return self._files.info(name)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        info = self.info(name)
        if info.dtype == "BF16" and ml_dtypes is None:
            floats = np.empty(info.shape, np.float32)
            self._files.read_as_float(name, floats)
            return floats
        stored = np.empty(info.shape, np.uint16 if info.dtype == "BF16" else _DTYPES[info.dtype])
        self._files.read(name, stored)
        return stored.view(ml_dtypes.bfloat16) if info.dtype == "BF16" else stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_metrics(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """metrics.jsonl of a run, by its path or its folder: a column by name, a value by logged step, NaN where a line lacks it."""
    columns = {name: np.frombuffer(column, np.float64).copy() for name, column in metrics_columns(path).items()}
    columns["step"] = columns["step"].astype(np.int64)
    return columns
