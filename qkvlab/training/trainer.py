"""The training loop, to be read: an iterator that takes one optimiser step and gives one record, again and again.

    for record in Trainer(config):
        print(record.step, record.loss)

It prints nothing and knows no page: whoever iterates decides what to show, and pausing is not iterating.

A run is a pure function of (config, step). Whatever is random at step s comes from a generator seeded with
(seed, purpose, s); nothing is drawn from, or set in, the process. So two runs in two threads do not disturb each other,
two variants with one seed see the same batches, and a run that was killed goes on exactly where its checkpoint is.
"""

import dataclasses
import errno
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from qkvlab import __version__, tasks
from qkvlab.models.config import check_types
from qkvlab.models.transformer import GPT, Encoder, ModelConfig, ViT, count_parameters
from qkvlab.tasks import Task
from qkvlab.training import checkpoint as disk
from qkvlab.training.checkpoint import Record, RunError
from qkvlab.training.optim import build_optimiser

__all__ = ["Record", "RunConfig", "RunError", "Trainer", "build_model", "learning_rate", "resolve_device"]

BATCH, DROPOUT = 1, 2  # purposes: what a generator is for

Status = Literal["ready", "running", "done", "diverged", "out of memory", "interrupted", "disk full"]

FAR, PATIENCE = 2.0, 30  # diverged: this many times the first loss, for this many steps running

_ALLOWED: tuple[tuple[str, Callable[[Any], object], str], ...] = (  # fields of RunConfig, beside their types
    ("steps batch length eval_every eval_rows", lambda v: 1 <= v < 2**31, "a whole number from 1 to below 2^31"),
    ("seed warmup", lambda v: v >= 0, "a whole number from 0"),
    ("patch", lambda v: v is None or v >= 1, "a whole number from 1, or None"),
    ("lr lr_matrix", lambda v: 0 < v < math.inf, "a number above 0"),
    ("weight_decay clip", lambda v: 0 <= v < math.inf, "a number from 0"),
    ("decay_fraction", lambda v: 0 < v <= 1, "a number above 0, up to 1"),
    ("min_lr_ratio", lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    (
        "betas",
        lambda v: len(v) == 2 and all(isinstance(b, float | int) and 0 <= b < 1 for b in v),
        "two numbers from 0 to below 1",
    ),
    ("device", re.compile("auto|cpu|mps|cuda(:[0-9]+)?").fullmatch, "'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'"),
)


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on. Raises ValueError naming the field, the value and what would be allowed."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: str = "shakespeare"
    tokens: str = "char"  # text: char | bpe512 | bpe1024 | gpt2
    data: str | None = None  # text: a file, folder or hub id in place of the shipped text
    length: int = 16  # lists: items
    patch: int | None = None  # images: pixels a side of a patch; None: a quarter of the image
    pool: Literal["cls", "mean"] = "cls"  # images
    optimiser: Literal["adamw", "muon"] = "adamw"
    steps: int = 500
    batch: int = 12  # rows a step
    seed: int = 0
    lr: float = 1e-3  # of AdamW
    lr_matrix: float = 0.02  # of Muon
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    warmup: int = 20  # steps
    schedule: Literal["cosine", "linear-tail"] = "cosine"
    decay_fraction: float = 0.5  # linear-tail: the part of the run, at its end, in which the rate falls
    min_lr_ratio: float = 0.1  # where the rate ends, as a part of its peak
    clip: float = 1.0  # largest norm of the gradient; 0: off
    eval_every: int = 50  # steps; the last step always evaluates
    eval_rows: int = 256
    device: str = "auto"  # auto | cpu | cuda | cuda:N | mps
    dtype: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast, on CUDA only

    def __post_init__(self) -> None:
        check_types(self)
        for names, is_allowed, allowed in _ALLOWED:
            for name in names.split():
                if not is_allowed(getattr(self, name)):
                    raise ValueError(f"{name}={getattr(self, name)!r}: allowed is {allowed}")

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it; `from_dict` gives the config back."""
        return dataclasses.asdict(self) | {"betas": list(self.betas)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunConfig":
        """Raises ValueError, also for a field that this version does not know."""
        try:
            return cls(**(values | {"model": ModelConfig(**values["model"]), "betas": tuple(values["betas"])}))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not the settings of a run of this version: {error}") from None

    def settings(self) -> dict[str, Any]:
        """The fields of the run and its model, flat. The device is left out: it does not make another run."""
        flat = self.as_dict()
        return {name: v for name, v in (flat.pop("model") | flat).items() if name != "device"}


def learning_rate(config: RunConfig, step: int) -> float:
    """The part of the peak learning rate that step 0, 1, ... takes."""
    warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "cosine":
        done = (step + 1 - config.warmup) / max(1, config.steps - config.warmup)  # 0 after the warm-up, 1 at the end
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, done))))
    else:
        fall = min(1.0, (config.steps - step) / (config.decay_fraction * config.steps))
    return warm * (config.min_lr_ratio + (1 - config.min_lr_ratio) * fall)


def resolve_device(name: str, dtype: str = "float32") -> torch.device:
    """`auto`: CUDA if there is one, else MPS, else the CPU. Raises ValueError where that, or the dtype, cannot be."""
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = [*[f"cuda:{i}" for i in range(cuda)], *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]
    if name != "auto" and name not in here and not (name == "cuda" and cuda):
        raise ValueError(f"device={name!r}: torch {torch.__version__} sees on this machine only {', '.join(here)}")
    device = torch.device(here[0].partition(":")[0] if name == "auto" else name)
    if dtype == "bfloat16" and device.type != "cuda":
        raise ValueError(f"dtype='bfloat16' needs a CUDA device and this run is on {device}: use dtype='float32'")
    return device


def build_model(config: RunConfig, task: Task) -> GPT | ViT | Encoder:
    """The network for the task, not yet initialised: GPT for text, ViT for images, Encoder for lists."""
    if task.kind == "text":
        return GPT(config.model, task.inputs)
    if task.kind == "images":
        image = task.image  # type: ignore[attr-defined]
        patch = config.patch or max(1, image // 4)
        model = replace(config.model, causal=False)
        return ViT(model, image=image, patch=patch, channels=task.inputs, classes=task.outputs, pool=config.pool)
    length = task.length  # type: ignore[attr-defined]
    return Encoder(replace(config.model, causal=False, context=length), task.inputs, task.outputs)


def _key(*numbers: int) -> int:
    """One number for a torch generator out of several."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _memory() -> float:
    """Bytes of memory this machine has; infinite where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in text for words in ("can't allocate memory", "not enough memory", "out of memory"))
    )


class Trainer(Iterator[Record]):
    """One run. Iterate to train; stop iterating to pause; look at .model, .records, .status and .message in between.

    With a folder, checkpoints and records are kept there, and a run that lies there already is taken up where its last
    checkpoint is. If two trainers use one folder, the later one wins and the earlier one stops.
    A loaded `task` may be handed in so that several runs share it; it must be the one the config names.

    Raises ValueError for a device, task or variant that cannot be, RunError for a folder that holds another run or a
    damaged one (nothing in it is changed), MemoryError when the model itself does not fit.
    """

    def __init__(self, config: RunConfig, folder: Path | None = None, *, task: Task | None = None):
        self.config = config
        self.device = resolve_device(config.device, config.dtype)
        self.task = task or tasks.load(config.task, tokens=config.tokens, data=config.data, length=config.length)
        self.step = 0
        self.records: list[Record] = []
        self.status: Status = "ready"
        self.message = "Not started."
        self.seconds = 0.0  # of training, evaluation and saving left out
        try:
            with torch.device("meta"):
                least = 12 * sum(p.numel() for p in build_model(config, self.task).parameters())
            if self.device.type == "cpu" and least > _memory():  # Linux would promise it, and kill this process later
                raise MemoryError
            self.model = build_model(config, self.task)
            self.model.init_weights(config.seed)
            self.model.to(self.device)
            self.optimiser = build_optimiser(self.model, config)
            rows = self.task.validation(config.model.context, config.eval_rows)
            self._validation = rows[0].to(self.device), rows[1].to(self.device)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            raise MemoryError(f"the model does not fit into the memory of {self.device}: use a smaller one") from error
        self.parameters = count_parameters(self.model)  # without embeddings
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._foreach = None if self.device.type == "mps" else True  # all tensors in one call, where torch can
        self._whole = True  # weights, optimiser state, step and records are of one moment
        self._lines = bytearray()  # records.jsonl as it is to be
        self._ours: list[disk.Identity] = [None]  # checkpoint files that are: while one takes another's place, both
        self._saved_step = 0
        self._save_after = 0.0
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            self._take_up(self.folder)

    def __next__(self) -> Record:
        if self.status not in ("ready", "running"):
            raise StopIteration
        record = None
        try:
            if self.status == "ready":
                self.status, self.message = "running", "Training."
                if self.folder:
                    disk.tidy(self.folder)
            record = self._step()
        except KeyboardInterrupt:
            self.stop()
        except (OSError, RuntimeError, MemoryError) as error:
            self._fail(error)
        if record is None:
            raise StopIteration
        return record

    def _step(self) -> Record | None:
        config, step = self.config, self.step
        start = time.perf_counter()

        if hasattr(self.task, "seek"):  # a streamed corpus must be read as far as this step has it; else no effect
            self.task.seek(step * config.batch * config.model.context)
        rng = np.random.default_rng((config.seed, BATCH, step))
        x, y = self.task.batch(rng, config.batch, config.model.context)
        if config.model.dropout:
            self.model.generator.manual_seed(_key(config.seed, DROPOUT, step))

        logits, y = self._forward(x, y)
        loss = F.cross_entropy(logits, y, ignore_index=-100)  # the mean over scored targets
        loss.backward()
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norm = get_total_norm(grads, foreach=self._foreach)
        loss_value, norm_value = torch.stack((loss.detach(), norm)).tolist()  # the step's one wait for the device
        if not math.isfinite(loss_value + norm_value):
            self._diverged(f"The loss is {loss_value} and the gradient's norm {norm_value}")
            return None
        if 0 < config.clip < norm_value:
            clip_grads_with_norm_(self._parameters, config.clip, norm, foreach=self._foreach)

        rate = learning_rate(config, step)
        self._whole = False
        self.optimiser.step(rate)
        self.optimiser.zero_grad()
        self.step = step + 1
        self.seconds += time.perf_counter() - start

        val_loss = val_accuracy = None
        if evaluates := self.step % config.eval_every == 0 or self.step == config.steps:
            val_loss, val_accuracy = self._validate()
            if not math.isfinite(val_loss):
                self._diverged(f"The validation loss is {val_loss}")
                return None
        record = Record(self.step, loss_value, config.lr * rate, norm_value, self.seconds, val_loss, val_accuracy)
        self.records.append(record)
        if self.folder:
            self._lines += disk.record_line(record)
        self._whole = True

        far = FAR * self.records[0].loss
        if loss_value > far and len(self.records) > PATIENCE and all(r.loss > far for r in self.records[-PATIENCE:]):
            self._diverged(f"The loss was above {far:.3g}, {FAR:g} times its first value, for {PATIENCE} steps")
        elif self.step == config.steps:
            self.save()
            self._end("done", f"Done: {self.step} steps, validation {val_loss:.4f} {self.task.unit}.")
        elif evaluates and loss_value <= far and time.monotonic() >= self._save_after:
            self.save()
        return record

    def _forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
            logits = self.model(x)
        return logits.float().flatten(0, -2), y.flatten()  # (rows, outputs), (rows,)

    def evaluate(self) -> float:
        """Mean loss on the fixed validation rows, without dropout. Draws nothing and changes nothing."""
        return self._validate()[0]

    @torch.no_grad()
    def _validate(self) -> tuple[float, float | None]:
        x, y = self._validation
        widest = max(self.task.outputs, self.model.config.hidden)  # of a token's activations
        rows = max(1, 2**22 // (self.model.config.context * widest))  # at once: 16 MB
        total, right, scored, classes = 0.0, 0, 0, self.task.kind != "text"
        self.model.eval()
        for i in range(0, len(x), rows):
            logits, targets = self._forward(x[i : i + rows], y[i : i + rows])
            total += F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum").item()
            scored += int((targets != -100).sum())
            if classes:
                right += int((logits.argmax(-1) == targets).sum())
        self.model.train()
        return total / scored, (right / scored if classes else None)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The attention maps of the model as it is now for inputs x: one (B, H, T, T) a layer."""
        return self.model.maps(x.to(self.device))

    # How a run ends

    def stop(self) -> None:
        """End here and keep what there is, as Ctrl-C does; a new Trainer on the same folder goes on.

        Call it from the thread that iterates, between two steps.
        """
        if self.status not in ("ready", "running"):
            return
        try:
            if self._whole and self.status == "running":
                self.save()
        except (OSError, RuntimeError, MemoryError) as error:
            return self._fail(error)
        self._end("interrupted", f"Interrupted after step {self.step}: {self._go_on()}.")

    def _diverged(self, what: str) -> None:
        kept = f" The weights of step {self._saved_step} are kept in {self.folder}." if self._saved_step else ""
        self._end("diverged", f"{what} at step {self.step}. A lower learning rate or a longer warm-up helps.{kept}")

    def _fail(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            self._end("disk full", f"No space is left where {self.folder} is. Free some; {self._go_on()}.")
        elif _is_out_of_memory(error):
            self.optimiser.zero_grad()
            self._end(
                "out of memory",
                f"Out of memory on {self.device} after step {self.step}. A smaller batch, context or width needs less "
                f"(and is another run). Or free some; {self._go_on()}.",
            )
        else:
            raise error

    def _go_on(self) -> str:
        if self.folder is None:
            return "nothing was kept on disk"
        return f"started again with the same settings, the run goes on from step {self._saved_step}"

    def _end(self, status: Status, message: str) -> None:
        if self.status not in ("ready", "running"):  # it has ended before
            return
        started, self.status, self.message = self.status == "running", status, message
        if started and self.folder and self._is_ours():
            with suppress(OSError):  # a full disk: then .message alone says it
                disk.write_atomic(self.folder / disk.RECORDS, bytes(self._lines))
                disk.write_json(self.folder / disk.STATUS, {"status": status, "message": message, "step": self.step})

    # What lies on disk

    def save(self) -> None:
        """Write a checkpoint now, if there is a folder. Raises OSError when it cannot; the one before is untouched."""
        if self.folder is None:
            return
        path = self.folder / disk.CHECKPOINT
        if not self._is_ours():
            return self._end("interrupted", f"{path} was written or removed by someone else; this run has stopped.")
        start = time.monotonic()
        disk.write_atomic(self.folder / disk.RECORDS, bytes(self._lines))  # before the checkpoint that counts on them
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        tensors |= {f"optimiser.{name}": t for name, t in self.optimiser.state_dict().items()}
        disk.write_checkpoint(path, tensors, {"step": self.step, "seconds": self.seconds}, self._ours.append)
        self._ours, self._saved_step = self._ours[-1:], self.step
        took = time.monotonic() - start
        self._save_after = 0.0 if took < 0.1 else time.monotonic() + 20 * took  # a big model must not save all the time

    def _is_ours(self) -> bool:
        return disk.identity(self.folder / disk.CHECKPOINT) in self._ours  # type: ignore[operator]

    def _take_up(self, folder: Path) -> None:
        """Read what lies in the folder; write config.json when nothing does."""
        config_path, path = folder / disk.CONFIG, folder / disk.CHECKPOINT
        if not config_path.exists():
            if path.exists():
                raise RunError(f"{path} is there without its {disk.CONFIG}: choose another folder")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                disk.write_json(config_path, {"config": self.config.as_dict(), "made": self._made()})
            except OSError as error:
                raise RunError(f"cannot write {config_path}: {error.strerror or error}") from None
            return
        try:
            theirs, ours = RunConfig.from_dict(disk.read_config(config_path)[0]).settings(), self.config.settings()
        except ValueError as error:
            raise RunError(f"{config_path}: {error}. Choose another folder") from None
        if differ := [name for name in ours if ours[name] != theirs[name]]:
            what = ", ".join(f"{name}={theirs[name]!r}, not {ours[name]!r}" for name in differ)
            raise RunError(f"{folder} holds a run with {what}: choose another folder or the same settings")
        if not path.exists():
            return
        records = disk.read_records(folder / disk.RECORDS)
        tensors, about = disk.read_checkpoint(path)
        self.step, self.seconds = about["step"], about["seconds"]
        if len(records) < self.step:
            raise RunError(
                f"{folder / disk.RECORDS} ends before step {self.step}, where {path} is: delete {folder} to start anew"
            )
        self.records = records[: self.step]  # what came after the checkpoint is taken again
        self._lines = bytearray().join(map(disk.record_line, self.records))
        part = lambda head: {name.removeprefix(head): t for name, t in tensors.items() if name.startswith(head)}
        try:
            self.model.load_state_dict(part("model."))
            self.optimiser.load_state_dict(part("optimiser."))
        except (RuntimeError, ValueError) as error:
            raise RunError(f"{path} does not fit this model (was the data changed?): {error}") from None
        self._ours = [disk.identity(path)]
        self._saved_step = self.step
        self.message = f"Taken up after step {self.step}."
        if self.step == self.config.steps:
            self.status, self.message = "done", f"Done: {self.step} steps."

    def _made(self) -> dict[str, Any]:
        """What made this run, for whoever finds the folder."""
        name = platform.processor() or platform.machine()
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "qkvlab": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.system(),
            "device": f"{self.device} ({name})",
            "threads": torch.get_num_threads(),
            "parameters": self.parameters,
            "unit": self.task.unit,
        }
