"""``strategy="ddp_sharded"`` of Lightning's Trainer and Fabric does what ``strategy="ddp"`` does, bit for bit."""

import functools
import inspect
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.utils import _pytree as pytree

from fairshard import _frameworks
from fairshard.checkpoint import Checkpoint
from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScaleWrapper, ShardedGradScaler

MODES = (
    {},
    {"mode": "optimizer"},
    {"overlap_gather": True},
    {"step_in_backward": True},
    {"release_parameters": True, "overlap_gather": True, "bucket_bytes": 600},
)


def _modes(pl, fit, ShardedStrategy):
    from lightning.pytorch.strategies import StrategyRegistry

    for name, method in (("ddp_sharded", "popen"), ("ddp_sharded_spawn", "spawn")):
        assert StrategyRegistry.get(name)._start_method == method
    _, plain = fit("ddp")
    for options in MODES:
        trainer, model = fit(ShardedStrategy(**options))
        assert isinstance(trainer.strategy.optimizers[0], OSS) and trainer.strategy.model is model
        pl.assert_same(model, plain, options)
        assert model.losses == plain.losses, options


def _options_of_trainer(pl, fit):
    cases = {
        "value": {"gradient_clip_val": 0.001, "gradient_clip_algorithm": "value"},
        "accumulation": {"accumulate_grad_batches": 3},
        "bf16": {"precision": "bf16-mixed"},
    }
    for name, options in cases.items():
        pl.assert_same(fit("ddp_sharded", **options)[1], fit("ddp", **options)[1], name)
    for options in ({"gradient_clip_val": 0.1}, {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}):
        # SGD, because Adam would make up for any scale; a norm is rounded once for each rank
        model, plain = (fit(s, pl.Model(torch.optim.SGD), **options)[1] for s in ("ddp_sharded", "ddp"))
        pl.assert_same(model, plain, options, rtol=1e-5, atol=1e-6)


def _options_of_sharding(pl, fit, ShardedStrategy):
    """All reach their takers, those about what travels change it, and a mesh has shards and replicas."""
    names = {name for taker in (OSS, ShardedDataParallel) for name in inspect.signature(taker.__init__).parameters}
    given = sorted(names - _frameworks._ITS_OWN)
    assert {"partition", "master_weights", "gather_dtype", "reduce_dtype", "static_graph", "mesh"} <= {*given}
    of_optimizers, of_model = _frameworks.split(dict.fromkeys(given), OSS, ShardedDataParallel)
    assert sorted({*of_optimizers, *of_model}) == given
    _, plain = fit("ddp", pl.Model(torch.optim.SGD))
    travelling = {"gather_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}
    _, model = fit(ShardedStrategy(partition="tensor", static_graph=True, **travelling), pl.Model(torch.optim.SGD))
    with pytest.raises(AssertionError):
        pl.assert_same(model, plain, "in low precision")
    pl.assert_same(model, plain, "in low precision", rtol=0.1, atol=0.02)

    _, plain = fit("ddp")
    for nodes, ranks in ((1, 2), (2, 1)):
        mesh = init_device_mesh("cpu", (nodes, ranks), mesh_dim_names=("replicate", "shard"))
        trainer, model = fit(ShardedStrategy(mesh=mesh))
        assert trainer.optimizers[0].group.size == ranks
        pl.assert_same(model, plain, f"{nodes} nodes")

    with pytest.raises(TypeError, match="no option of OSS, ShardedDataParallel, DDPStrategy: overlap"):
        ShardedStrategy(overlap=True)


def _communication_hooks(pl, fit, ShardedStrategy):
    """Run where gradients are whole, and are refused elsewhere."""
    from lightning.pytorch.strategies import DDPStrategy

    from fairshard.lightning import SlowMoStrategy

    def halved(state, bucket):
        return default_hooks.allreduce_hook(state, bucket).then(lambda future: future.value() / 2)

    class HookedDDP(DDPStrategy):
        """Lightning itself gives DDP its hook on GPUs only."""

        def configure_ddp(self):
            super().configure_ddp()
            self.model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(halved))

    hook = {"ddp_comm_state": None, "ddp_comm_hook": halved, "ddp_comm_wrapper": default_hooks.fp16_compress_wrapper}
    _, plain = fit(HookedDDP())
    pl.assert_same(fit(ShardedStrategy(mode="optimizer", **hook))[1], plain, "hook")
    with pytest.raises(ValueError, match="a communication hook averages whole gradients"):
        fit(ShardedStrategy(**hook))
    with pytest.raises(TypeError, match="ddp_comm_hook is DDP's"):
        SlowMoStrategy(ddp_comm_hook=halved)
    with pytest.raises(TypeError, match=r"no option of .*: model_averaging_period"):
        ShardedStrategy(model_averaging_period=2)


def _float16(pl, fit, ShardedStrategy, folder):
    """Once in each epoch, one element of one rank's gradients is infinite: no rank steps, and all have one scale."""
    from lightning.pytorch.plugins import MixedPrecision

    class Overflowing(pl.Model):
        def training_step(self, batch, number):
            is_infinite = number == 2 and dist.get_rank() == 1
            return self.loss(batch) + (self.net[-1].bias[0] * math.inf if is_infinite else 0)

    def fit_scaled(strategy, **options):
        scaler = torch.amp.GradScaler("cpu", 2.0**10, growth_interval=3)
        trainer, model = fit(strategy, Overflowing(), plugins=[MixedPrecision("16-mixed", "cpu", scaler)], **options)
        return trainer, model, trainer.precision_plugin.scaler

    *_, plain, scaler = fit_scaled("ddp")
    assert scaler.get_scale() == 2.0**9  # halved, doubled, and halved
    for strategy in ("ddp_sharded", ShardedStrategy(**MODES[-1])):
        _, model, ours = fit_scaled(strategy)
        assert isinstance(ours, ShardedGradScaler)
        pl.assert_same(model, plain, "16-mixed")
        assert ours.get_scale() == scaler.get_scale()
    fit_scaled("ddp_sharded", max_epochs=1)[0].save_checkpoint(f"{folder}/float16.ckpt")
    _, model, ours = fit_scaled("ddp_sharded", path=f"{folder}/float16.ckpt")
    pl.assert_same(model, plain, "16-mixed, resumed")
    assert ours.get_scale() == scaler.get_scale()


def _optimizers(pl, fit, folder):
    for optim, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adafactor, {})):
        model, plain = (fit(strategy, pl.Model(optim, **options))[1] for strategy in ("ddp_sharded", "ddp"))
        pl.assert_same(model, plain, optim)

    # an OSS that configure_optimizers makes itself is taken as it is, also by Lightning's own strategy
    def made_by(strategy):
        return pl.Model(OSS, optim=torch.optim.AdamW, overlap_gather=strategy != "ddp")

    _, plain = fit("ddp")
    for strategy in ("ddp", "ddp_sharded"):
        trainer, model = fit(strategy, made_by(strategy))
        assert isinstance(trainer.optimizers[0], OSS)
        pl.assert_same(model, plain, f"OSS under {strategy}")
        fit(strategy, made_by(strategy), max_epochs=1)[0].save_checkpoint(f"{folder}/oss.ckpt")
        for other in (made_by(strategy), pl.Model()):  # an OSS goes on, and so does a plain optimizer
            pl.assert_same(fit(strategy, other, path=f"{folder}/oss.ckpt")[1], plain, f"OSS under {strategy}, resumed")
    rates = []
    for strategy in ("ddp", "ddp_sharded"):
        trainer, model = fit(strategy, pl.OnPlateau(), max_epochs=3)
        rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])
        plain = model if strategy == "ddp" else plain
    pl.assert_same(model, plain, "on a plateau")
    assert rates[0] == rates[1] and rates[0][0] < 0.02
    _, plain = fit("ddp_find_unused_parameters_true", pl.Adversaries())
    pl.assert_same(fit("ddp_sharded", pl.Adversaries())[1], plain, "several")


def _checkpoints(pl, fit, ShardedStrategy, folder):
    strategies = {
        "ddp": lambda: "ddp",
        "sharded": lambda: "ddp_sharded",
        "released": lambda: ShardedStrategy(**MODES[-1]),
    }
    _, plain = fit("ddp")
    for name, strategy in strategies.items():
        trainer, _ = fit(strategy(), max_epochs=1)
        trainer.save_checkpoint(f"{folder}/{name}.ckpt")
    files = {name: torch.load(f"{folder}/{name}.ckpt", weights_only=True) for name in strategies}
    for name in ("sharded", "released"):
        values, structure = pytree.tree_flatten(files[name])
        expected, expected_structure = pytree.tree_flatten(files["ddp"])
        assert structure == expected_structure, name
        assert all(a.equal(b) if torch.is_tensor(a) else a == b for a, b in zip(values, expected, strict=True)), name
    for name, other in (("ddp", "sharded"), ("sharded", "ddp"), ("sharded", "released"), ("released", "sharded")):
        trainer, model = fit(strategies[other](), path=f"{folder}/{name}.ckpt")
        assert trainer.global_step == 8
        pl.assert_same(model, plain, f"{other} from {name}")


def _folders(pl, fit, ShardedStrategy, folder):
    """Every rank writes what it owns; what was saved at the end of the first epoch is resumed."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    _, plain = fit("ddp")
    for options in (MODES[0], MODES[-1]):
        saving = ModelCheckpoint(folder, filename="{epoch}", enable_version_counter=False, save_top_k=-1)
        strategy = ShardedStrategy(checkpoint_folders=True, **options)
        fit(strategy, callbacks=[saving], enable_checkpointing=True)
        _, model = fit("ddp_sharded", path=f"{folder}/epoch=0.ckpt")
        pl.assert_same(model, plain, f"from a folder, {options}")
    model = pl.Model()
    trainer = fit("ddp_sharded", model, path=f"{folder}/epoch=1.ckpt", max_epochs=2)[0]
    assert trainer.global_step == 8
    pl.assert_same(model, plain, "nothing left to train")
    trainer.test(fresh := pl.Model(), pl.data(7), ckpt_path=f"{folder}/epoch=1.ckpt", verbose=False)
    pl.assert_same(fresh, plain, "tested")


def _slowmo(pl, fit, folder):
    """Two nodes of one rank: as by hand, and resumed with the outer optimizer's momentum."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from fairshard.lightning import SlowMoStrategy

    options = {"slowmo_frequency": 3, "localsgd_frequency": 2, "slowmo_momentum": 0.5}
    model = SlowMoDistributedDataParallel(pl.net(), 1, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for inputs, targets in pl.data():
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            model.perform_slowmo(optimizer)
    model.average_parameters()

    class Plain(pl.Model):
        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    saving = ModelCheckpoint(f"{folder}/slowmo", filename="{epoch}", enable_version_counter=False, save_top_k=-1)
    _, ours = fit(SlowMoStrategy(1, **options), Plain(), callbacks=[saving], enable_checkpointing=True)
    pl.assert_same(ours.net, model.module, "SlowMo")
    _, ours = fit(SlowMoStrategy(1, **options), Plain(), path=f"{folder}/slowmo/epoch=0.ckpt")
    pl.assert_same(ours.net, model.module, "SlowMo resumed")


def _offload(pl, fit, folder):
    from fairshard.lightning import OffloadStrategy

    def paged():
        return OffloadStrategy("net", num_slices=3, checkpoint_activation=True)

    models = []
    for strategy in ("auto", paged()):
        trainer, model = fit(strategy, devices=1)
        trainer.test(model, pl.data(7), verbose=False)
        models.append(model)
    assert any("forward" in vars(module) for module in models[1].modules())
    states = zip(*(model.state_dict().values() for model in models), strict=True)
    assert all(value.equal(plain) for plain, value in states)
    assert models[1].losses == models[0].losses
    path = f"{folder}/offload{dist.get_rank()}.ckpt"
    fit(paged(), devices=1, max_epochs=1)[0].save_checkpoint(path)
    _, resumed = fit(paged(), path=path, devices=1)
    assert all(a.equal(b) for a, b in zip(resumed.state_dict().values(), models[0].state_dict().values(), strict=True))


def _monitor(pl, fit, folder):
    """Each step sends a model's gradients, and its parameters; here with AdaScale, whose gain is logged."""
    from lightning.pytorch.loggers import TensorBoardLogger

    from fairshard.lightning import ShardingMonitor
    from support.curves import read_curves

    class Scaled(pl.Model):
        def configure_optimizers(self):
            return OSS(self.net.parameters(), AdaScaleWrapper, optim_cls=torch.optim.SGD, lr=0.1)

        def on_train_batch_end(self, *_):
            self.logged.append(dict(self.trainer.callback_metrics))

    model = Scaled()
    model.logged = []
    logger = TensorBoardLogger(folder, "", "curves")
    fit("ddp_sharded", model, callbacks=[ShardingMonitor()], logger=logger, log_every_n_steps=1)
    last = model.logged[-1]
    assert last["fairshard/sent_bytes"] >= 4 * sum(p.numel() for p in model.parameters())
    assert last["fairshard/waited_s"] > 0 and 1 <= last["fairshard/gain"] <= 2
    if dist.get_rank() == 0:
        curves = read_curves(f"{folder}/curves")
        for name in ("waited_s", "sent_bytes", "gain"):
            assert curves[f"fairshard/{name}"] == pytest.approx(
                [float(each[f"fairshard/{name}"]) for each in model.logged]
            )


def _after_training(pl, fit, ShardedStrategy):
    """The module is whole again: tested, asked, and trained once more by the same Trainer."""
    results = []
    for strategy in ("ddp", "ddp_sharded", ShardedStrategy(**MODES[-1])):
        trainer, model = fit(strategy)
        pl.settle_ddp(model)
        for run in (trainer.test, trainer.validate):
            run(model, pl.data(7), verbose=False)
        predicted = torch.cat(trainer.predict(model, pl.data(7)))
        trainer.fit_loop.max_epochs = 3
        trainer.fit(model, pl.data())
        results.append((model, model.losses, predicted))
    for model, losses, predicted in results[1:]:
        pl.assert_same(model, results[0][0], "again")
        assert losses == results[0][1] and predicted.equal(results[0][2])


def _compiled(pl, fit, ShardedStrategy):
    """Lightning compiles the steps of a module that is given to it so: graphs are those that it has with DDP."""
    results = []
    for strategy in ("ddp", "ddp_sharded", ShardedStrategy(**MODES[-1])):
        torch._dynamo.reset()
        counters = torch._dynamo.utils.counters
        counters.clear()
        model = pl.Model()
        fit(strategy, torch.compile(model, backend="eager"), max_epochs=1)
        results.append((model, dict(counters["stats"]), sum(counters["graph_break"].values())))
    plain, ours, released = results
    pl.assert_same(ours[0], plain[0], "compiled")
    pl.assert_same(released[0], plain[0], "compiled, released")  # where hooks break the graphs
    assert ours[1:] == plain[1:] and plain[1]["calls_captured"] > 10


def _fabric(pl, folder):
    from lightning.fabric.plugins import MixedPrecision

    from fairshard.lightning import FabricShardedStrategy
    from support.fabric import train

    plain = train("ddp")
    for strategy in ("ddp_sharded", FabricShardedStrategy(**MODES[-1])):
        pl.assert_same(train(strategy), plain, strategy)
    options = {"precision": "bf16-mixed", "clip": {"max_norm": 0.05}}
    ours, theirs = (train(strategy, **options) for strategy in ("ddp_sharded", "ddp"))
    pl.assert_same(ours, theirs, options, rtol=1e-5, atol=1e-6)
    compiled = {"compiler": functools.partial(torch.compile, backend="eager")}
    for strategy in ("ddp_sharded", FabricShardedStrategy(**MODES[-1])):
        pl.assert_same(train(strategy, **compiled), plain, f"{strategy}, compiled")
    precisions = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", 2.0**10)) for _ in range(2)]
    ours, theirs = (
        train(strategy, plugins=[precision])
        for strategy, precision in zip(("ddp_sharded", "ddp"), precisions, strict=True)
    )
    assert isinstance(precisions[0].scaler, ShardedGradScaler)
    pl.assert_same(ours, theirs, "16-mixed")
    for name, other in (("ddp", "ddp_sharded"), ("ddp_sharded", "ddp"), ("ddp_sharded", "ddp_sharded")):
        train(name, f"{folder}/fabric", 4)
        model = train(other, load=f"{folder}/fabric")
        pl.assert_same(pl.settle_ddp(model) if other == "ddp" else model, plain, f"{other} from {name}")


def _all_of_it(rank, world_size, folder):
    from fairshard.lightning import ShardedStrategy
    from support import lightning as pl

    _fabric(pl, folder)
    _modes(pl, pl.fit, ShardedStrategy)
    _options_of_trainer(pl, pl.fit)
    _options_of_sharding(pl, pl.fit, ShardedStrategy)
    _communication_hooks(pl, pl.fit, ShardedStrategy)
    _float16(pl, pl.fit, ShardedStrategy, folder)
    _optimizers(pl, pl.fit, folder)
    _checkpoints(pl, pl.fit, ShardedStrategy, folder)
    _folders(pl, pl.fit, ShardedStrategy, folder)
    _slowmo(pl, pl.fit, folder)
    _offload(pl, pl.fit, folder)
    _monitor(pl, pl.fit, folder)
    _after_training(pl, pl.fit, ShardedStrategy)
    _compiled(pl, pl.fit, ShardedStrategy)


def _more_ranks(rank, world_size, folder):
    """Three ranks go on from what two have saved: from our folder as DDP does from Lightning's file."""
    from fairshard.lightning import ShardedStrategy
    from support import lightning as pl

    trainer, plain = pl.fit("ddp", path=f"{folder}/ddp.ckpt")
    first = trainer.global_step
    for options in (MODES[0], MODES[-1]):
        trainer, model = pl.fit(ShardedStrategy(**options), path=f"{folder}/epoch=0.ckpt")
        assert trainer.global_step == first > 4
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            if name != "net.0.bias":  # BatchNorm takes it away: its gradient is nothing but rounding
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=f"{options} {name}")


@pytest.mark.costly
@pytest.mark.cpu_only("Lightning chooses devices by itself")
def test_lightning(run_ranks, tmp_path):
    run_ranks(2, _all_of_it, str(tmp_path))
    run_ranks(3, _more_ranks, str(tmp_path))
    # what two ranks wrote is loaded by one, without Lightning
    model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(10, 33), nn.BatchNorm1d(33), nn.Tanh(), nn.Linear(33, 17))})
    report = Checkpoint(tmp_path / "epoch=1.ckpt", {"model": model}).load(strict=False)
    assert report.step == 8 and model["net"][1].num_batches_tracked == 8
