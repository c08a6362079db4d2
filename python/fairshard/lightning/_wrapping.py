"""What strategies that wrap the model have in common: when it is wrapped, and what is saved of it."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairshard.checkpoint import Checkpoint
from fairshard.lightning._names import TrainerDDPStrategy

_REST = "lightning.ckpt"  # in a folder: what Lightning saves beside model and optimizers


class WrappingStrategy(TrainerDDPStrategy):
    """Lightning's DDPStrategy with another wrapper, and checkpoints that may be folders of ours."""

    _saves_folders = False

    def configure_ddp(self) -> None:
        """Wraps the model, and registers a communication hook, if there is one; the optimizers come after it."""
        self.model = self._setup_model(self.model)
        hook = self._ddp_comm_hook
        if hook is not None:
            wrapper = self._ddp_comm_wrapper
            self.model.register_comm_hook(self._ddp_comm_state, wrapper(hook) if wrapper else hook)

    @property
    def _is_wrapped(self) -> bool:
        return self.model is not self.lightning_module

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Within it, gradients add up."""
        with self.model.no_sync() if self._is_wrapped else contextlib.nullcontext():
            yield

    def teardown(self) -> None:
        """Gives the module back as it was."""
        self.model = self.lightning_module
        super().teardown()

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """A folder is loaded by each rank into what it owns, so that this must be known."""
        return True

    def _parts(self) -> dict[str, Any]:
        return {"model": self.model} | {f"optimizer{i}": optimizer for i, optimizer in enumerate(self.optimizers)}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Its whole state on the first rank, unless every rank writes its own to a folder."""
        return {} if self._saves_folders else super().optimizer_state(optimizer)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Writes a file, or a folder to which every rank writes what it owns."""
        if self._saves_folders:
            os.makedirs(filepath, exist_ok=True)
            Checkpoint(filepath, self._parts(), keep=1).save(checkpoint["global_step"])
            filepath = Path(filepath) / _REST
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads a file, or of a folder what is Lightning's own."""
        rest = Path(checkpoint_path) / _REST
        if not rest.is_file():
            return super().load_checkpoint(checkpoint_path, weights_only)
        loaded = super().load_checkpoint(rest, weights_only)
        return {**loaded, "folder": str(rest.parent / f"step-{loaded['global_step']:08}")}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Loads the module's part of a checkpoint; of a folder, the optimizers' too, if it is trained."""
        if "folder" in checkpoint:
            parts = self._parts() if self._is_wrapped else {"model": self.model}
            Checkpoint(Path(checkpoint["folder"]).parent, parts).load(checkpoint["folder"], strict)
        else:
            super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Loads the optimizers' part of a file; that of a folder is loaded already."""
        if "folder" not in checkpoint:
            super().load_optimizer_state_dict(checkpoint)
