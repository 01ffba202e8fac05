import builtins
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Mapping, Union

import numpy as np
import numpy.typing as npt

_Path = Union[str, os.PathLike[str]]
_Value = Union[bool, int, float, str, os.PathLike[str], Sequence[str], Sequence[float]]

class UserError(ValueError):
    """A recipe, data, a file or a machine is wrong."""

    id: str  # "recipe.unknown_key"
    key: str  # the recipe key, flag or file to change; may be empty
    message: str

class Stage:
    pipeline_rank: int
    total_bytes: int
    bytes: dict[str, int]
    host_bytes: int
    flops_model: float
    flops_executed: float

class PlannedOp:
    name: str
    count: float
    time_s: float
    flops: float
    bytes: float

class PlannedStage(Stage):
    waiting_s: float
    compute: list[PlannedOp]
    communication: list[PlannedOp]

class Pass:
    name: str
    time_s: float

class Program:
    ranks: int
    parameters: int
    microbatches: int
    global_batch: int
    seq_len: int
    bytes_of_a_rank: int
    bytes_of_all_ranks: int
    host_bytes_of_a_rank: int
    passes: list[Pass]
    text: str

class Check:
    fits: bool
    machine: str
    ranks: int
    capacity_bytes: int | None
    stages: list[Stage]
    refusal: UserError | None

class Plan:
    step_time_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    bubble_fraction: float
    exposed_communication_s: float
    hidden_communication_s: float
    fits: bool
    ranks: int
    cluster: str
    machine: str
    declared: bool
    stages: list[PlannedStage]

class Recipe:
    @staticmethod
    def read(path: _Path, settings: Mapping[str, _Value] = ...) -> Recipe: ...
    @staticmethod
    def parse(toml: str, settings: Mapping[str, _Value] = ...) -> Recipe: ...
    def set(self, key: str, value: _Value) -> None: ...
    def get(self, key: str) -> str: ...
    def toml(self) -> str: ...
    def config(self) -> dict[str, str]: ...
    def compile(self, after: str = ..., skip: Sequence[str] = ...) -> Program: ...
    def show(self, after: str = ..., skip: Sequence[str] = ...) -> str: ...
    def check(self, cluster: _Path = ...) -> Check: ...
    def plan(self, cluster: _Path = ...) -> Plan: ...

class Step:
    step: int
    steps: int
    loss: float
    grad_norm: float
    lr: float
    committed: bool
    step_time_s: float
    tokens_per_s: float
    heldout_loss: float | None
    checkpoint: str

class TrainResult:
    done: bool
    stopped: str
    steps: int
    final_loss: float
    tokens_per_s: float
    step_time_s: float
    heldout_loss: float | None
    planned_bytes: int
    resident_bytes: int
    checkpoint: str
    dump_folder: str

def train(
    recipe: Recipe,
    on_step: Callable[[Step], bool | None] | None = ...,
    *,
    watch: Sequence[str] = ...,
    cluster: _Path = ...,
    progress: bool = ...,
) -> TrainResult: ...

class Evaluation:
    step: int
    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int

def evaluate(
    checkpoint: _Path,
    *,
    settings: Mapping[str, _Value] = ...,
    data: Sequence[str] = ...,
    tokens: _Path = ...,
    split: Literal["heldout", "train"] = ...,
    steps: int = ...,
) -> Evaluation: ...

class TensorInfo:
    dtype: str
    shape: list[int]
    bytes: int

class CheckpointFiles:
    folder: str
    step: int
    recipe: Recipe
    def __init__(self, path: _Path) -> None: ...
    def names(self) -> list[str]: ...
    def info(self, name: str) -> TensorInfo: ...
    def read(self, name: str, to: npt.NDArray[Any]) -> None: ...
    def read_as_float(self, name: str, to: npt.NDArray[np.float32]) -> None: ...

def metrics_columns(path: _Path) -> dict[str, builtins.bytes]: ...  # float64
def set_messages(take: Callable[[Literal["info", "warning", "error"], str], None] | None) -> None: ...
def print_messages() -> None: ...
def use_gpu_module(file: _Path) -> None: ...
def version() -> str: ...
