"""Small programs for Lightning, in ranks that run already. Imported only there: Lightning takes seconds."""

import logging
import warnings

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from support.ranks import set_torchrun_variables

set_torchrun_variables()
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*num_workers|.*does not have many workers|.*treespec")


def data(seed: int = 0) -> DataLoader:
    torch.manual_seed(seed)
    dataset = TensorDataset(torch.randn(24, 10), torch.randn(24, 5))
    return DataLoader(dataset, batch_size=3, sampler=DistributedSampler(dataset, shuffle=False))


def net(inputs: int = 10) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Linear(inputs, 33), nn.BatchNorm1d(33), nn.Tanh(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 5))
    return nn.Sequential(*layers)


class Model(pl.LightningModule):
    """With two parameter groups and a schedule; ``losses`` are those of validation."""

    def __init__(self, make=torch.optim.AdamW, **options):
        super().__init__()
        self.net = net()
        self.make, self.options = make, options
        self.losses = []

    def loss(self, batch):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, _):
        return self.loss(batch)

    def validation_step(self, batch, _):
        self.losses.append(self.loss(batch).item())

    test_step = validation_step

    def predict_step(self, batch, _):
        return self.net(batch[0])

    def configure_optimizers(self):
        first, *rest = self.net.parameters()
        optimizer = self.make([{"params": [first], "lr": 0.05}, {"params": rest}], **{"lr": 0.02, **self.options})
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class OnPlateau(Model):
    """Its rate is halved when validation's mean over ranks has not grown."""

    def validation_step(self, batch, number):
        super().validation_step(batch, number)
        self.log("loss", self.losses[-1], sync_dist=True)

    def configure_optimizers(self):
        optimizer = self.make(self.net.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}


class Adversaries(pl.LightningModule):
    """Two models with an optimizer each, which step in turn within one training step."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.maker, self.judge = net(), net(5)

    def training_step(self, batch, number):
        for_maker, for_judge = self.optimizers()
        self.toggle_optimizer(for_judge)
        for_judge.zero_grad()
        self.manual_backward(self.judge(batch[1]).pow(2).mean() - self.judge(self.maker(batch[0]).detach()).mean())
        self.clip_gradients(for_judge, 0.01, "value")
        for_judge.step()
        self.untoggle_optimizer(for_judge)
        if number % 2 == 0:
            self.toggle_optimizer(for_maker)
            for_maker.zero_grad()
            self.manual_backward(self.judge(self.maker(batch[0])).mean())
            for_maker.step()
            self.untoggle_optimizer(for_maker)

    def configure_optimizers(self):
        return torch.optim.Adam(self.maker.parameters(), 0.01), torch.optim.SGD(self.judge.parameters(), 0.01, 0.9)


def fit(strategy, model=None, path=None, **options) -> tuple[pl.Trainer, pl.LightningModule]:
    model = Model() if model is None else model
    options = {**QUIET, "devices": dist.get_world_size(), "max_epochs": 2, **options}
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", **options)
    trainer.fit(model, data(), data(5) if hasattr(model, "losses") else None, ckpt_path=path)
    return trainer, model


def settle_ddp(model: nn.Module) -> nn.Module:
    """Its buffers as ours has them when a backward has ended, and DDP after its next forward."""
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    return model


def assert_same(ours: nn.Module, theirs: nn.Module, what: object, **tolerances) -> None:
    settle_ddp(theirs)
    for (name, value), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(
            value,
            other,
            **(tolerances or {"rtol": 0, "atol": 0}),
            msg=lambda text, name=name: f"{what}: {name}: {text}",
        )
