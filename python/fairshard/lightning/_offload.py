"""OffloadStrategy: a module that does not fit on the device, under Lightning's Trainer."""

from typing import Any

from fairshard._frameworks import split
from fairshard.experimental.nn import OffloadModel
from fairshard.lightning._names import SingleDeviceStrategy

__all__ = ["OffloadStrategy"]


class OffloadStrategy(SingleDeviceStrategy):
    """Pages one module of the LightningModule through the device; all else is on the device as ever.

    Its parameters and gradients are in host memory, for any optimizer of ``configure_optimizers``.

    Example::

        trainer = Trainer(strategy=OffloadStrategy("net", device="cuda", num_slices=24, checkpoint_activation=True))
        trainer.fit(model)  # model.net is an nn.Sequential; optimizer.step() steps in host memory

    Args:
        module: the module's name in the LightningModule.
        **options: those of :class:`~fairshard.experimental.nn.OffloadModel` but for its ``optimizer``, and of
            Lightning's SingleDeviceStrategy, by their names.
    """

    def __init__(self, module: str, **options: Any) -> None:
        if "optimizer" in options:
            raise TypeError("OffloadStrategy: the optimizer is that of configure_optimizers, and steps after backward")
        self._of_model, own = split(options, OffloadModel, SingleDeviceStrategy)
        super().__init__(**own)
        self._name = module
        self._of_model.pop("device", None)
        self._offloaded: OffloadModel | None = None

    def model_to_device(self) -> None:
        """Moves all but the module's parameters."""
        module = self.lightning_module.get_submodule(self._name)
        if self._offloaded is None or self._offloaded.model is not module:
            self._offloaded = OffloadModel(module, self.root_device, **self._of_model)
        paged = {*module.parameters()}
        for tensor in (*self.lightning_module.parameters(), *self.lightning_module.buffers()):
            if tensor not in paged:
                tensor.data = tensor.data.to(self.root_device)
