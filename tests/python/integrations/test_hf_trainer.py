"""ShardedTrainer trains, saves and resumes as Hugging Face's Trainer does with DDP, bit for bit."""

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScaleWrapper, ShardedGradScaler

MODES = (
    {},
    {"mode": "optimizer"},
    {"overlap_gather": True},
    {"step_in_backward": True},
    {"release_parameters": True, "overlap_gather": True, "bucket_bytes": 2000},
)


def _modes(hf, folder):
    from support.curves import read_curves

    evaluated = {"eval_strategy": "steps", "eval_steps": 2}
    plain = hf.train(hf.Trainer, hf.arguments(folder, **evaluated))
    assert isinstance(plain.model_wrapped, DistributedDataParallel)
    for options in MODES:
        args = hf.arguments(folder, report_to="tensorboard" if options == MODES[-1] else "none", **evaluated)
        trainer = hf.train(hf.ShardedTrainer, args, sharding=options)
        assert isinstance(trainer.optimizer.optimizer, OSS)
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert all(entry["fairshard/sent_bytes"] > 1000 and entry["fairshard/waited_s"] > 0 for entry in logged)
        hf.assert_same(trainer, plain, options)
    if dist.get_rank() == 0:
        (curves,) = Path(folder).glob("runs/*")
        sent = [entry["fairshard/sent_bytes"] for entry in logged]
        assert read_curves(curves)["train/fairshard/sent_bytes"] == pytest.approx(sent)


def _features(hf, folder):
    cases = {
        "bf16": {"bf16": True},
        "accumulation": {"gradient_accumulation_steps": 2},
        "checkpointing": {"gradient_checkpointing": True},
        "reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        "adafactor": {"optim": "adafactor"},
        "sgd": {"optim": "sgd", "weight_decay": 0.1},
    }
    for name, options in cases.items():
        trainers = [hf.train(make, hf.arguments(folder, **options)) for make in (hf.ShardedTrainer, hf.Trainer)]
        hf.assert_same(*trainers, name)
    options = {"max_grad_norm": 0.05, "optim": "sgd"}  # which does not make up for a scale, as Adam does
    trainers = [hf.train(make, hf.arguments(folder, **options)) for make in (hf.ShardedTrainer, hf.Trainer)]
    hf.assert_same(*trainers, "clipped", rtol=1e-5, atol=1e-6)
    norms = [[entry["grad_norm"] for entry in trainer.state.log_history[:-1]] for trainer in trainers]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and max(norms[0]) > 0.05


def _lora(hf, folder):
    from peft import LoraConfig, get_peft_model

    def model():
        return get_peft_model(hf.model(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))

    trainers = [hf.train(make, hf.arguments(folder), model()) for make in (hf.ShardedTrainer, hf.Trainer)]
    hf.assert_same(*trainers, "LoRA")
    assert len(trainers[0].optimizer.param_groups[0]["params"]) == 4


def _given_optimizers(hf, folder):
    trainers = []
    for make in (hf.ShardedTrainer, hf.Trainer):
        model = hf.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        trainers.append(hf.train(make, hf.arguments(folder), model, optimizers=(optimizer, schedule)))
        trainers[-1].args.max_steps = 6
        trainers[-1].train()  # once more, with what there is
    hf.assert_same(*trainers, "given")
    model = hf.model()
    scaled = OSS(model.parameters(), AdaScaleWrapper, optim_cls=torch.optim.SGD, lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(scaled, 0.5)
    trainer = hf.train(hf.ShardedTrainer, hf.arguments(folder), model, optimizers=(scaled, schedule))
    gains = [entry["fairshard/gain"] for entry in trainer.state.log_history if "loss" in entry]
    assert gains and all(1 <= gain <= 2 for gain in gains) and max(gains) > 1


def _float16(hf, folder):
    """Accelerate has no float16 on CPUs; of it, what scales and skips steps is tried here.

    In the second step one element of one rank's gradients is infinite: no rank steps, and no schedule. (torch's fused
    optimizers hide from the Trainer that they have not stepped, so that with DDP the schedule would.)
    """

    def scaled(make):
        class Scaled(make):
            def create_accelerator_and_postprocess(self):
                super().create_accelerator_and_postprocess()
                self.accelerator.scaler = torch.amp.GradScaler("cpu", 2.0**10, growth_interval=2)

            def compute_loss(self, *arguments, **kwargs):
                is_infinite = self.state.global_step == 1 and dist.get_rank() == 1
                loss = super().compute_loss(*arguments, **kwargs)
                return loss + (self.model.transformer.ln_f.bias[0] * math.inf if is_infinite else 0)

        return Scaled

    class Sharded(hf.ShardedTrainerMixin, scaled(hf.Trainer)):
        pass

    args = hf.arguments(folder, optim="adamw_torch")
    plain = hf.train(scaled(hf.Trainer), args)
    assert plain.accelerator.scaler.get_scale() == 2.0**10  # halved, and doubled
    for options in ({}, MODES[-1]):
        trainer = hf.train(Sharded, args, sharding=options)
        assert isinstance(trainer.accelerator.scaler, ShardedGradScaler)
        assert trainer.accelerator.scaler.get_scale() == plain.accelerator.scaler.get_scale()
        hf.assert_same(trainer, plain, "scaled", rtol=0, atol=0)  # but for losses, of which some are NaN


def _compiled(hf, folder):
    """By the Trainer's own option: around DDP, and within our wrapper."""
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
    results = []
    for make, options in ((hf.Trainer, {}), *((hf.ShardedTrainer, {"sharding": mode}) for mode in ({}, MODES[-1]))):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        trainer = hf.train(make, hf.arguments(folder, **compiled), **options)
        counters = torch._dynamo.utils.counters
        results.append((trainer, counters["stats"]["calls_captured"], sum(counters["graph_break"].values())))
    for trainer, captured, breaks in results[1:]:
        hf.assert_same(trainer, results[0][0], "compiled")
        assert captured > 0 and breaks <= results[0][2]


def _checkpoints(hf, folder):
    saved = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    saved |= {"load_best_model_at_end": True, "save_total_limit": 3}
    sharded = {"sharding": MODES[-1]}
    makes = {"plain": (hf.Trainer, {}), "simple": (hf.ShardedTrainer, {}), "released": (hf.ShardedTrainer, sharded)}
    trainers = {
        name: hf.train(make, hf.arguments(f"{folder}/{name}", **saved), **options)
        for name, (make, options) in makes.items()
    }
    for name in ("simple", "released"):
        hf.assert_same(trainers[name], trainers["plain"], name)
        ours, theirs = (
            torch.load(f"{folder}/{n}/checkpoint-2/optimizer.pt", weights_only=True) for n in (name, "plain")
        )
        assert ours["param_groups"] == theirs["param_groups"]
        torch.testing.assert_close(ours["state"], theirs["state"], rtol=0, atol=0)
    for name, other in (("plain", "simple"), ("simple", "plain"), ("released", "simple"), ("simple", "released")):
        make, options = makes[other]
        args = hf.arguments(f"{folder}/{other}-{name}", **saved)
        trainer = hf.train(make, args, resume=f"{folder}/{name}/checkpoint-2", **options)
        hf.assert_same(trainer, trainers["plain"], f"{other} from {name}")


def _sharded_ddp(hf, folder):
    plain = hf.train(hf.Trainer, hf.arguments(folder))
    for word in ("simple", "zero_dp_2", "zero_dp_3", ""):
        args = hf.arguments(folder, hf.ShardedTrainingArguments, sharded_ddp=word)
        trainer = hf.train(hf.ShardedTrainer, args)
        assert isinstance(trainer.model_wrapped, DistributedDataParallel) == (word == "")
        hf.assert_same(trainer, plain, word)
    with pytest.raises(ValueError, match="sharded_ddp is 'offload', but must be one of 'simple'"):
        hf.arguments(folder, hf.ShardedTrainingArguments, sharded_ddp="offload")
    with pytest.raises(TypeError, match="no option of OSS, ShardedDataParallel: overlap"):
        hf.train(hf.ShardedTrainer, hf.arguments(folder), sharding={"overlap": True})


def _prepared(kind, model, accelerator):
    """A model and its optimizer: of torch, sharded under Accelerate's DDP, or sharded under our own wrapper."""
    if kind == "ours":
        model = accelerator.prepare_model(model, evaluation_mode=True)  # places and casts it, and does not wrap it
    oss = None if kind == "plain" else OSS(model.parameters(), torch.optim.AdamW, lr=0.01)
    optimizer = oss or torch.optim.AdamW(model.parameters(), lr=0.01)
    model = ShardedDataParallel(model) if kind == "ours" else accelerator.prepare_model(model)
    if oss is not None:
        oss.register_state_dict_pre_hook(lambda oss: oss.consolidate_state_dict(-1))
    return model, accelerator.prepare(optimizer)


def _accelerate(hf, folder):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    results = {}
    for kind in ("plain", "ddp", "ours"):
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, optimizer = _prepared(kind, hf.model(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), accelerator)
        schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        batches = list(accelerator.prepare(torch.utils.data.DataLoader(hf.data(), 3)))

        def train(steps, model=model, optimizer=optimizer, schedule=schedule, batches=batches, accelerator=accelerator):
            for step in steps:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batches[step]).loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()

        train(range(2))
        accelerator.save_state(f"{folder}/{kind}-state")
        train(range(4))
        accelerator.load_state(f"{folder}/{kind}-state")
        train(range(2, 4))
        results[kind] = [value.clone() for value in accelerator.unwrap_model(model).state_dict().values()]
        assert isinstance(optimizer.optimizer, OSS) == (kind != "plain")
    for kind in ("ddp", "ours"):
        assert all(value.equal(plain) for value, plain in zip(results[kind], results["plain"], strict=True)), kind


def _all_of_it(rank, world_size, folder):
    from support import trainers as hf

    _modes(hf, folder)
    _features(hf, folder)
    _lora(hf, folder)
    _given_optimizers(hf, folder)
    _float16(hf, folder)
    _compiled(hf, folder)
    _checkpoints(hf, folder)
    _sharded_ddp(hf, folder)
    _accelerate(hf, folder)


@pytest.mark.costly
@pytest.mark.cpu_only("Trainer chooses devices by itself")
def test_the_trainer_of_hugging_face(run_ranks, tmp_path):
    run_ranks(2, _all_of_it, str(tmp_path))
