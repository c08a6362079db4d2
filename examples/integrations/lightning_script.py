"""A Lightning script as it was written for FairScale, strategy="ddp_sharded", with one line more.

    python lightning_script.py

Lightning starts the second process, unless torchrun has. Prints the loss of the first and of the last epoch:
"loss 10.5 -> 0.3".
"""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

import fairshard.lightning  # noqa: F401  the line


class Regression(pl.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(10, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.layers(batch), batch.sum(1, keepdim=True))
        self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        self.losses.append(self.trainer.callback_metrics["train_loss"].item())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=4)}


if __name__ == "__main__":
    pl.seed_everything(7)
    data = DataLoader(torch.randn(512, 10), batch_size=16)
    model = Regression()
    trainer = pl.Trainer(
        strategy="ddp_sharded", accelerator="cpu", devices=2, max_epochs=5, logger=False, enable_progress_bar=False
    )
    trainer.fit(model, data)
    if trainer.is_global_zero:
        print(f"loss {model.losses[0]:.3g} -> {model.losses[-1]:.3g}")
