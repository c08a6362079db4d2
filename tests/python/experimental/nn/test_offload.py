"""An offloaded model against the same model without it, bit for bit, on the GPU if there is one."""

import copy

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from fairshard.experimental.nn.offload import OffloadModel
from fairshard.optim.grad_scaler import ShardedGradScaler
from support.offload import DEVICE, MODELS, Plain, adamw, data, layers, same, sgd

STEPS = 10
pytestmark = pytest.mark.gpu


def gradients(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def compare(model, offload, plain, optimizer, steps=STEPS, batch=8):
    for step in range(steps):
        results = []
        for side in (plain.model, offload):
            torch.manual_seed(step)
            x = data(step, batch).requires_grad_()
            output = side(x)
            results.append((x, output, output.square().mean()))
        (x, output, loss), (own_x, own_output, own_loss) = results
        same([own_output], [output], step)
        torch.manual_seed(step)
        plain.backward(loss)
        torch.manual_seed(step)
        own_loss.backward()
        same([own_x.grad], [x.grad], step)
        same(gradients(model), gradients(plain.host), step)
        assert all(p.device.type == "cpu" for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        plain.step()
        same(model.parameters(), plain.host.parameters(), step)
        same(model.buffers(), plain.model.buffers(), step)
    report = offload.report()
    assert report["most_filled"] <= report["slots"]


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("slices", [1, 3, 20])
@pytest.mark.parametrize("kind", MODELS)
def test_trains_as_the_model_without_it(kind, slices, checkpoints):
    model = MODELS[kind]()
    plain = Plain(copy.deepcopy(model), sgd)
    offload = OffloadModel(model, DEVICE, num_slices=slices, checkpoint_activation=checkpoints)
    compare(model, offload, plain, sgd(offload.parameters()), steps=STEPS if slices == 3 else 3)


def test_a_list_is_sliced_as_it_is_and_spreads_tuples():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(10, 10)

        def forward(self, x, y):
            return self.layer(x) * y, x + y

    torch.manual_seed(0)
    blocks = [Two(), Two(), Two()]
    x, y = data(0), data(1)
    expected = (x, y)
    for block in copy.deepcopy(blocks):
        expected = block.to(DEVICE)(*expected)
    offload = OffloadModel(blocks, DEVICE)
    same(offload(x, y), expected)
    assert offload.report()["slices"] == 3


@pytest.mark.parametrize("checkpoints", [False, True])
def test_microbatches_give_the_same_up_to_summation(checkpoints):
    plain = layers().to(DEVICE)
    model = copy.deepcopy(plain).cpu()
    offload = OffloadModel(model, DEVICE, checkpoint_activation=checkpoints, num_microbatches=4)
    x = data(0)
    expected = plain(x)
    expected.square().mean().backward()
    output = offload(x)
    output.square().mean().backward()
    torch.testing.assert_close(output, expected)
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        torch.testing.assert_close(ours, theirs.cpu())
    assert offload.report()["fills"] <= 2 * offload.report()["slices"]


def test_evaluation_needs_no_graph_and_leaves_nothing():
    model = layers(nn.BatchNorm1d(24))
    plain = copy.deepcopy(model).to(DEVICE).eval()
    offload = OffloadModel(model, DEVICE).eval()
    with torch.no_grad():
        same([offload(data(0))], [plain(data(0))])
    same([offload(data(0)).detach()], [plain(data(0)).detach()])  # a graph whose backward never comes
    same([offload(data(1)).detach()], [plain(data(1)).detach()])


class Gpt(nn.Module):
    """Not a Sequential: embeddings that the head shares, and blocks that take two arguments."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(4))
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens, mask=None):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.norm(x) @ self.embedding.weight.t()


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("blocks", [[f"blocks.{i}" for i in range(4)], lambda model: model.blocks])
def test_blocks_of_any_module(blocks, checkpoints):
    model = Gpt()
    plain = Plain(copy.deepcopy(model), sgd)
    offload = OffloadModel(model, DEVICE, num_slices=4, blocks=blocks, checkpoint_activation=checkpoints)
    optimizer = sgd(offload.parameters())
    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    mask = nn.Transformer.generate_square_subsequent_mask(7, device=DEVICE)
    for step in range(4):
        torch.manual_seed(step)
        plain.backward(plain.model(tokens, mask=mask).square().mean())
        torch.manual_seed(step)
        (offload if step % 2 else model)(tokens, mask=mask).square().mean().backward()
        same(gradients(model), gradients(plain.host), step)
        optimizer.step()
        optimizer.zero_grad()
        plain.step()
    assert offload.report()["slices"] == 4
    assert offload.report()["slots"] == 3


def test_gradients_add_up_and_zero_grad_works_both_ways():
    model = layers()
    plain = Plain(copy.deepcopy(model), sgd)
    offload = OffloadModel(model, DEVICE)
    for step, to_none in enumerate([None, None, False, None, True, None]):
        if to_none is not None:
            offload.zero_grad(set_to_none=to_none)
            plain.model.zero_grad(set_to_none=to_none)
        offload(data(step)).square().mean().backward()
        plain.backward(plain.model(data(step)).square().mean())
        same(gradients(model), gradients(plain.host), step)


def test_clipping_and_schedules():
    model = layers()
    plain = Plain(copy.deepcopy(model), sgd)
    offload = OffloadModel(model, DEVICE)
    optimizer = sgd(offload.parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (optimizer, plain.optimizer)]
    for step in range(5):
        offload(data(step)).square().mean().backward()
        plain.backward(plain.model(data(step)).square().mean())
        same([nn.utils.clip_grad_norm_(offload.parameters(), 0.1)],
             [nn.utils.clip_grad_norm_(plain.host.parameters(), 0.1)])  # fmt: skip
        optimizer.step()
        optimizer.zero_grad()
        plain.step()
        for schedule in schedules:
            schedule.step()
        same(model.parameters(), plain.host.parameters(), step)


def test_grad_scaler_skips_and_unscales(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = layers()
        plain = Plain(copy.deepcopy(model), sgd)
        offload = OffloadModel(model, DEVICE)
        optimizer = sgd(offload.parameters())
        scalers = [ShardedGradScaler(init_scale=2.0**8, growth_interval=2, device="cpu") for _ in range(2)]
        for step in range(6):
            factor = float("inf") if step == 2 else 1.0
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
                ours, theirs = (side(data(step)).float().square().mean() * factor for side in (offload, plain.model))
            scalers[0].scale(ours.cpu()).backward()
            plain.backward(scalers[1].scale(theirs.cpu()))
            same(gradients(model), gradients(plain.host), step) if step != 2 else None
            scalers[0].step(optimizer)
            scalers[0].update()
            optimizer.zero_grad()
            scalers[1].step(plain.optimizer)
            scalers[1].update()
            with torch.no_grad():
                for a, b in zip(plain.host.parameters(), plain.model.parameters(), strict=True):
                    b.copy_(a)
                    b.grad = None
            assert scalers[0].get_scale() == scalers[1].get_scale()
            same(model.parameters(), plain.host.parameters(), step)
    finally:
        torch.distributed.destroy_process_group()


def test_state_dict_has_whole_weights_under_plain_names():
    model = layers(nn.BatchNorm1d(24))
    names = list(model.state_dict())
    offload = OffloadModel(model, DEVICE)
    offload(data(0)).sum().backward()
    state = {name: value.clone() for name, value in offload.state_dict().items()}
    assert list(state) == names
    other = OffloadModel(layers(nn.BatchNorm1d(24), seed=1), DEVICE)
    other.load_state_dict(state)
    same([other.eval()(data(1)).detach()], [offload.eval()(data(1)).detach()])
    assert [name for name, _ in offload.named_parameters()] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("kind", ["dropout", "in place", "tied", "containers", "no parameters"])
def test_inputs_of_slices_may_wait_on_the_host(kind):
    model = MODELS[kind]()
    plain = Plain(copy.deepcopy(model), sgd)
    offload = OffloadModel(model, DEVICE, checkpoint_activation=True, offload_activations=True)
    compare(model, offload, plain, sgd(offload.parameters()), steps=4)
    without = OffloadModel(MODELS[kind](), DEVICE, checkpoint_activation=True)
    without(data(0)).sum().backward()
    if kind != "no parameters":  # one slice
        assert offload.report()["bytes_out"] > without.report()["bytes_out"]


class _Watched(nn.Module):
    """Counts, whenever it is run again, which inputs of the blocks are still there."""

    def __init__(self, inputs: list, counts: list) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self._inputs, self._counts = inputs, counts

    def forward(self, x):
        if len(self._inputs) < 8:
            self._inputs.append(StorageWeakRef(x.untyped_storage()))
        else:
            self._counts.append(sum(not storage.expired() for storage in self._inputs))
        return torch.tanh(self.layer(x))


def test_activations_are_let_go_while_backward_runs():
    inputs, counts = [], []
    model = nn.Sequential(*[_Watched(inputs, counts) for _ in range(8)])
    offload = OffloadModel(model, DEVICE, num_slices=8, checkpoint_activation=True, offload_activations=True)
    offload(torch.randn(4, 8, device=DEVICE)).sum().backward()
    assert len(counts) == 8
    # block number n is run again when those after the next have done with theirs
    assert all(left <= n + 2 for n, left in zip(range(7, -1, -1), counts, strict=True)), counts


def test_two_forwards_before_a_backward_with_inputs_on_the_host():
    model = layers()
    plain = copy.deepcopy(model).to(DEVICE)
    offload = OffloadModel(model, DEVICE, checkpoint_activation=True, offload_activations=True)
    for side in (offload, plain):
        (side(data(0)).square().mean() + side(data(1)).square().mean()).backward()
    same(gradients(model), gradients(plain))


def test_spilled_slices_train_the_same(tmp_path):
    model = layers()
    plain = Plain(copy.deepcopy(model), sgd)
    offload = OffloadModel(model, DEVICE, host_budget_bytes=8000, spill_dir=str(tmp_path))
    compare(model, offload, plain, sgd(offload.parameters()), steps=3)
    report = offload.report()
    assert 0 < report["host_bytes"] <= 8000
    assert report["host_bytes"] + report["file_bytes"] >= 2 * sum(p.nbytes for p in model.parameters())
    assert report["file_bytes"] > 0
    assert list(tmp_path.iterdir()) == []  # the files have no names


def test_an_error_in_a_pass_leaves_the_model_usable():
    class Fails(nn.Module):
        is_on = False

        def forward(self, x):
            if self.is_on:
                raise RuntimeError("on purpose")
            x.register_hook(self.check) if x.requires_grad else None
            return x * 1

        def check(self, _):
            if self.fails_in_backward:
                raise RuntimeError("in backward")

    fails = Fails()
    fails.fails_in_backward = False
    model = nn.Sequential(*layers(), fails, nn.Linear(5, 5))
    plain = copy.deepcopy(model).to(DEVICE)
    offload = OffloadModel(model, DEVICE)
    fails.is_on = True
    with pytest.raises(RuntimeError, match="on purpose"):
        offload(data(0))
    assert all(p.device.type == "cpu" for p in model.parameters())
    fails.is_on, fails.fails_in_backward = False, True
    with pytest.raises(RuntimeError, match="in backward"):
        offload(data(0)).sum().backward()
    fails.fails_in_backward = False
    offload.zero_grad()
    offload(data(0)).sum().backward()
    offload.zero_grad()
    offload(data(0)).sum().backward()
    plain(data(0)).sum().backward()
    same(gradients(model), gradients(plain))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_slices": 0}, "num_slices is 0"),
        ({"num_microbatches": 0}, "num_microbatches is 0"),
        ({"device": torch.device("cuda:99")}, "cuda:99 is not available"),
        ({"offload_device": torch.device("cuda")}, "offload_device is cuda"),
        ({"blocks": ["9"]}, "no block '9'; its children are: 0, 1"),
        ({"blocks": ["0", "0"]}, "overlap"),
        ({"blocks": ["0"], "num_microbatches": 2}, "num_microbatches needs"),
        ({"device_budget_bytes": 100}, "device_budget_bytes is 100"),
        ({"host_budget_bytes": 100}, "spill_dir"),
        ({"host_budget_bytes": 100, "spill_dir": "/nowhere"}, "'/nowhere'"),
        ({"overlap_forward": True}, "overlap_forward needs the option optimizer"),
        ({"offload_activations": True}, "offload_activations needs checkpoint_activation"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"optimizer": torch.optim.RMSprop([torch.zeros(1)])}, "RMSprop"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(options, words):
    model = layers()
    before = [p.data_ptr() for p in model.parameters()]
    with pytest.raises((ValueError, RuntimeError), match=words):
        OffloadModel(model, **{"device": DEVICE, **options})
    assert [p.data_ptr() for p in model.parameters()] == before
    model(data(0).cpu()).sum().backward()


def test_bad_batches_and_models():
    offload = OffloadModel(layers(), DEVICE, num_microbatches=3)
    with pytest.raises(ValueError, match="a batch of 8 does not divide into num_microbatches = 3"):
        offload(data(0))
    offload(data(0, batch=9))
    with pytest.raises(ValueError, match="Linear, not an nn"):
        OffloadModel(nn.Linear(2, 2), DEVICE)
    with pytest.raises(ValueError, match="common"):  # a tied weight stays, and there is no room for it
        OffloadModel(MODELS["tied"](), DEVICE, device_budget_bytes=5000)


class TestStepInBackward:
    @pytest.mark.parametrize("make", [adamw, sgd, lambda p: torch.optim.Adam(p, lr=1e-2, fused=True, amsgrad=True)])
    def test_gives_what_a_step_afterwards_gives(self, make):
        model = layers()
        plain = Plain(copy.deepcopy(model), make)
        optimizer = make(model.parameters())
        for group in [*optimizer.param_groups, *plain.optimizer.param_groups]:
            group["fused"] = True
        offload = OffloadModel(model, DEVICE, optimizer=optimizer)
        schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (optimizer, plain.optimizer)]
        for step in range(STEPS):
            optimizer.zero_grad()
            offload(data(step)).square().mean().backward()
            assert all(p.grad is None for p in model.parameters())
            optimizer.step()
            plain.backward(plain.model(data(step)).square().mean())
            plain.step()
            for schedule in schedules:
                schedule.step()
            same(model.parameters(), plain.host.parameters(), step)
        ours, theirs = optimizer.state_dict()["state"], plain.optimizer.state_dict()["state"]
        for number, state in theirs.items():
            same([ours[number][key] for key in state], state.values())
        assert offload.report()["optimizer_elements"] == sum(p.numel() for p in model.parameters())

    @pytest.mark.parametrize("slices", [1, 3, 5])
    def test_may_go_on_while_the_next_forward_runs(self, slices):
        model = layers()
        plain = Plain(copy.deepcopy(model), adamw)
        optimizer = adamw(model.parameters())
        offload = OffloadModel(model, DEVICE, num_slices=slices, optimizer=optimizer, overlap_forward=True)
        schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (optimizer, plain.optimizer)]
        for step in range(STEPS):
            loss = offload(data(step)).square().mean()
            loss.backward()
            optimizer.step()
            theirs = plain.model(data(step)).square().mean()
            plain.backward(theirs)
            plain.step()
            for schedule in schedules:
                schedule.step()
            same([loss.detach()], [theirs.detach()], step)
        state = optimizer.state_dict()["state"]
        for number, values in plain.optimizer.state_dict()["state"].items():
            same([state[number][key] for key in values], values.values())
        same(offload.parameters(), plain.host.parameters())

    def test_accumulates_within_no_step(self):
        model = layers()
        plain = Plain(copy.deepcopy(model), adamw)
        optimizer = adamw(model.parameters())
        offload = OffloadModel(model, DEVICE, optimizer=optimizer)
        for step in range(3):
            with offload.no_step():
                offload(data(step)).square().mean().backward()
            offload(data(step + 9)).square().mean().backward()
            optimizer.step()
            plain.backward(plain.model(data(step)).square().mean())
            plain.backward(plain.model(data(step + 9)).square().mean())
            plain.step()
            same(model.parameters(), plain.host.parameters(), step)

    def test_follows_what_is_loaded(self):
        model, source = layers(), layers(seed=5)
        offload = OffloadModel(model, DEVICE, optimizer=sgd(model.parameters()), param_dtype=torch.bfloat16)
        offload(data(0).bfloat16()).sum().backward()
        offload.load_state_dict(source.state_dict())
        expected = source.to(DEVICE).bfloat16()(data(1).bfloat16())
        same([offload(data(1).bfloat16()).detach()], [expected.detach()])

    def test_refuses_a_parameter_that_the_optimizer_lacks(self):
        model = layers()
        offload = OffloadModel(model, DEVICE, optimizer=adamw(model[0].parameters()))
        with pytest.raises(ValueError, match=r"'2.weight' .* not in the optimizer"):
            offload(data(0))


@pytest.mark.parametrize("in_backward", [False, True])
def test_low_precision_on_the_device_with_exact_weights_on_the_host(in_backward):
    model = layers(nn.Dropout(0.1))
    optimizer = adamw(model.parameters())
    offload = OffloadModel(model, DEVICE, param_dtype=torch.bfloat16, optimizer=optimizer if in_backward else None)
    twin = copy.deepcopy(layers(nn.Dropout(0.1)))
    twin_optimizer = adamw(twin.parameters())
    for step in range(STEPS):
        torch.manual_seed(step)
        optimizer.zero_grad()
        offload(data(step).bfloat16()).float().square().mean().backward()
        optimizer.step()
        torch.manual_seed(step)
        rounded = copy.deepcopy(twin).to(DEVICE).bfloat16()
        rounded(data(step).bfloat16()).float().square().mean().backward()
        for master, low in zip(twin.parameters(), rounded.parameters(), strict=True):
            master.grad = low.grad.float().cpu()
        twin_optimizer.step()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert ours.dtype == torch.float32
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
            with torch.no_grad():  # a rounding of its own in the last place must not grow
                ours.copy_(theirs)
    elements = sum(p.numel() for p in model.parameters())
    assert offload.report()["host_bytes"] <= (16 if in_backward else 8) * elements + 512 * 4 * 9
