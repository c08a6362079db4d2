"""AdaScale in one process that accumulates: options, rules, groups, states, errors."""

import contextlib
import copy
import io

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from fairshard.optim.adascale import AdaScale, AdaScaleWrapper
from support.adascale import Simulation, first_layers, unit_loss
from support.models import mlp, values


def _alone(optim=SGD, model=None, groups=None, count=2, own=None, **options):
    model = model or mlp()
    base = optim(groups(model) if groups else model.parameters(), **(own or {"lr": 0.1}))
    return model, AdaScale(base, num_gradients_to_accumulate=count, **options)


def _backward(ada, model, step, count=2, is_scaled=True):
    ada.zero_grad()
    losses = [unit_loss(model, unit, step) / (count if is_scaled else 1) for unit in range(count)]
    for loss in losses:
        loss.backward()
    return sum(losses)


def test_one_process_with_accumulation_that_changes():
    model, ada = _alone(count=4)
    simulation = Simulation()
    for step in range(9):
        count = (4, 2, 3)[step // 3]
        ada.set_num_gradients_to_accumulate(count)
        assert (ada.scale, ada.smoothing) == (count, pytest.approx(1 - count / 1000))
        _backward(ada, model, step, count)
        ada.step()
        simulation.step(step, range(count))
        simulation.check(ada, model, step)


def test_gradients_are_what_autograd_left_until_they_are_asked_to_be_means():
    for is_scaled in (True, False):
        model, ada = _alone(is_scaled_loss=is_scaled)
        plain, simulation = mlp(), Simulation()
        _backward(ada, model, 0, is_scaled=is_scaled)
        _backward(SGD(plain.parameters()), plain, 0, is_scaled=is_scaled)
        simulation.step(0, range(2))
        before = values(model)
        ada.step()
        assert ada.gain() == pytest.approx(simulation.gain(), rel=1e-5)
        for parameter, value, theirs in zip(model.parameters(), before, plain.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, theirs.grad, rtol=0, atol=0)
            torch.testing.assert_close(parameter.detach(), value - 0.1 * ada.gain() * theirs.grad)
    _backward(ada, model, 1, is_scaled=False)
    sums = [parameter.grad.clone() for parameter in model.parameters()]
    ada.scale_grad_by_num_grads_to_accum()
    for parameter, total in zip(model.parameters(), sums, strict=True):
        torch.testing.assert_close(parameter.grad, total / 2)


@pytest.mark.parametrize(
    "options",
    [
        {"smoothing": 0.0},
        {"smoothing": 0.5},
        {"smoothing": 0.7, "debias_ewma": False},
        {"scale": 2.5, "smoothing": 0.9},
    ],
)
def test_given_scales_and_smoothing(options):
    model, ada = _alone(count=3, **options)
    simulation = Simulation(**{key.removesuffix("_ewma"): value for key, value in options.items()})
    for step in range(8):
        if step >= 6:  # once with the estimate of the variance following the scale, once without
            ada.set_scale(step - 2.0, update_estimate=step == 6)
            if step == 6:
                simulation.averages[0][0] *= (step - 2.0) / simulation.given_scale
            simulation.scale = simulation.given_scale = step - 2.0
            assert (ada.scale, ada.gain()) == (step - 2.0, pytest.approx(simulation.gain(), rel=1e-5))
        _backward(ada, model, step, 3)
        ada.step()
        simulation.step(step, range(3))
        simulation.check(ada, model, step)


@pytest.mark.parametrize("first", ["scale", "accumulation"])
@pytest.mark.parametrize("count", [3, 6, 9])
def test_a_normal_batch_that_stays_one_keeps_its_variance(count, first):
    """Scale and accumulation change together: a part is a normal batch before and after, whichever is set first.

    FairScale multiplies the variance by the old scale over the new one instead: then neither the variance of a normal
    batch stays, nor that of the whole batch.
    """
    model = torch.nn.Linear(2, 2, bias=False)
    ada = AdaScale(SGD(model.parameters(), lr=0.1), num_gradients_to_accumulate=2)
    for x in ([0.0, 1.0], [1.0, 0.0]):
        (model(torch.tensor(x)).sum() / 2).backward()
    assert ada.gain() == pytest.approx(2.0)  # a variance of 2, and a mean of square norm 0
    ada.step()
    ada.zero_grad()
    changes = {"scale": ada.set_scale, "accumulation": ada.set_num_gradients_to_accumulate}
    for change in sorted(changes, key=lambda name: name != first):
        changes[change](count)
    for _ in range(count):  # without any variance, and with a mean of square norm 2
        (model(torch.tensor([0.0, 1.0])).sum() / count).backward()
    keep = 1 - count / 1000
    variance, square = keep * (2 / 1000) * 2, (1 - keep) * 2
    assert ada.gain() == pytest.approx((variance + square) / (variance / count + square), rel=1e-3)


def test_each_group_has_its_gain_and_a_late_one_its_own_averages():
    model, ada = _alone(groups=first_layers, smoothing=0.9)
    simulation = Simulation(groups=first_layers, smoothing=0.9)
    schedules = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (ada, simulation.optimizer)]
    for step in range(6):
        if step == 3:
            for optimizer, owner in ((ada, model), (simulation.optimizer, simulation.model)):
                optimizer.add_param_group({"params": [*owner[4].parameters()], "lr": 0.5, "initial_lr": 0.5})
        _backward(ada, model, step)
        ada.step()
        simulation.step(step, range(2))
        simulation.check(ada, model, step)
        assert ada.gain(0) != ada.gain(1)
        if step < 3:
            for schedule in schedules:
                schedule.step()
    assert [group["lr"] for group in ada.param_groups] == pytest.approx([0.025, 0.0125, 0.5])


class _Recording(SGD):
    """Keeps the rates of its steps, and fails when told to."""

    fails, tag = False, "mine"

    def step(self, closure=None):
        self.seen = [float(group["lr"]) for group in self.param_groups]
        if self.fails:
            raise ArithmeticError("base")
        return super().step(closure)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_the_learning_rate_is_the_users_again_after_a_step_even_a_failed_one(rate):
    model = mlp()
    base = _Recording(model.parameters(), lr=rate)
    ada = AdaScale(base, num_gradients_to_accumulate=2)
    for base.fails in (False, True):
        _backward(ada, model, 0)
        with pytest.raises(ArithmeticError, match="base") if base.fails else contextlib.nullcontext():
            ada.step()
        assert base.seen == pytest.approx([0.1 * ada.gain()])
        assert float(ada.param_groups[0]["lr"]) == float(base.param_groups[0]["lr"]) == pytest.approx(0.1, rel=1e-7)


@pytest.mark.parametrize(("optim", "rule"), [(SGD, "adam"), (Adam, None), (AdamW, None), (Adam, "sgd")])
def test_rules(optim, rule):
    model, ada = _alone(optim, own={"lr": 1e-3}, **({"rule": rule} if rule else {}))
    simulation = Simulation(optim=optim, rule=rule or "adam", lr=1e-3)
    for step in range(4):
        _backward(ada, model, step)
        ada.step()
        simulation.step(step, range(2))
        simulation.check(ada, model, step)


def test_closures_run_before_the_gain_is_taken():
    model, ada = _alone()
    simulation = Simulation()
    for step in range(3):
        loss = ada.step(lambda: _backward(ada, model, step))  # noqa: B023
        before = sum(unit_loss(simulation.model, unit, step) for unit in range(2)) / 2
        assert loss.item() == pytest.approx(before.item(), rel=1e-5)
        simulation.step(step, range(2))
        simulation.check(ada, model, step)


def test_states_are_resumed_exactly_and_those_of_plain_optimizers_taken():
    for debias in (True, False):
        model, ada = _alone(own={"lr": 0.1, "momentum": 0.9}, smoothing=0.6, debias_ewma=debias)
        for step in range(3):
            _backward(ada, model, step)
            ada.step()
        file = io.BytesIO()
        torch.save(ada.state_dict(), file)
        file.seek(0)
        again, resumed = _alone(model=copy.deepcopy(model), own={"lr": 0.7}, smoothing=0.6, debias_ewma=debias)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for step in range(3, 6):
            for each, owner in ((ada, model), (resumed, again)):
                _backward(each, owner, step)
                each.step()
            assert (resumed.gain(), resumed.effective_steps()) == (ada.gain(), ada.effective_steps())
        for ours, theirs in zip(values(again), values(model), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    plain = SGD(mlp().parameters(), lr=0.3, momentum=0.9)
    plain.load_state_dict(resumed.state_dict())
    fresh, taken = _alone(own={"lr": 0.1})
    taken.load_state_dict(plain.state_dict())
    assert (taken.param_groups[0]["lr"], taken.param_groups[0]["momentum"]) == (0.1, 0.9)
    momentum = plain.state[plain.param_groups[0]["params"][0]]["momentum_buffer"]
    torch.testing.assert_close(taken.state[fresh[0].weight]["momentum_buffer"], momentum)
    _, other = _alone(groups=first_layers)
    with pytest.raises((ValueError, RuntimeError), match="group"):
        other.load_state_dict(ada.state_dict())


def test_it_is_a_torch_optimizer_and_shows_what_it_wraps():
    model = mlp()
    base = _Recording(model.parameters(), lr=0.1, momentum=0.5)
    ada = AdaScale(base, num_gradients_to_accumulate=2)
    assert isinstance(ada, torch.optim.Optimizer)
    assert (ada.tag, ada.defaults["momentum"]) == ("mine", 0.5)
    assert ada.param_groups is base.param_groups
    with pytest.raises(AttributeError, match="nothing_of_it"):
        ada.nothing_of_it  # noqa: B018
    _backward(ada, model, 0)
    ada.step()
    assert ada.state[model[0].weight] is base.state[model[0].weight]
    ada.zero_grad(set_to_none=False)
    assert all(parameter.grad.count_nonzero() == 0 for parameter in model.parameters())
    ada.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())
    wrapper = AdaScaleWrapper(mlp().parameters(), optim_cls=_Recording, num_gradients_to_accumulate=4, lr=0.3)
    assert (wrapper.tag, wrapper.scale, wrapper.param_groups[0]["lr"]) == ("mine", 4, 0.3)

    gain = ada.gain()
    ada.unhook()
    _backward(base, model, 1)
    assert ada.gain() == gain
    again, simulation = AdaScale(base, num_gradients_to_accumulate=2), Simulation(model)
    _backward(again, model, 1)
    simulation.step(1, range(2))
    assert again.gain() == pytest.approx(simulation.gain(), rel=1e-5)


def test_norms_of_half_precision_do_not_overflow():
    model = nn.Linear(2, 2).half()
    ada = AdaScale(SGD(model.parameters(), lr=1e-3), num_gradients_to_accumulate=2, is_scaled_loss=False)
    for batch in ([300.0, 0.0], [0.0, 300.0]):
        model(torch.tensor([batch]).half()).sum().backward()
    assert ada.gain() == pytest.approx(180002 / 90002, rel=1e-6)


def test_models_in_double_precision():
    model, ada = _alone(model=mlp().double())
    simulation = Simulation()
    _backward(ada, model, 0)
    ada.step()
    simulation.step(0, range(2))
    simulation.check(ada, model)


@pytest.mark.parametrize("count", [2, 6])
def test_a_state_goes_on_with_another_number_of_gradients(count):
    model, ada = _alone(count=4)
    simulation = Simulation()
    for step in range(4):
        if step == 2:  # what was measured per normal batch stays true; the scale is the new run's
            state = ada.state_dict()
            _, ada = _alone(model=model, count=count)
            ada.load_state_dict(state)
            assert ada.scale == count
        parts = 4 if step < 2 else count
        _backward(ada, model, step, parts)
        ada.step()
        simulation.step(step, range(parts))
        simulation.check(ada, model, step)


def test_bad_input_is_named():
    model = mlp()
    for options, error, words in (
        ({}, RuntimeError, "accumul"),
        ({"world_size": 1}, RuntimeError, "accumul"),
        ({"scale": 0.5}, ValueError, "scale"),
        ({"smoothing": 1.0}, ValueError, "smoothing"),
        ({"smoothing": -0.1}, ValueError, "smoothing"),
        ({"rule": "lamb"}, ValueError, "rule"),
    ):
        count = {} if error is RuntimeError else {"num_gradients_to_accumulate": 2}
        with pytest.raises(error, match=words):
            AdaScale(SGD(model.parameters(), lr=0.1), **count, **options)
    model, ada = _alone(_Recording)
    with pytest.raises(ValueError, match="scale"):
        ada.set_scale(0.9)
    with pytest.raises(RuntimeError, match="accumul"):
        ada.set_num_gradients_to_accumulate(1)
    with pytest.raises(ValueError, match="update_smoothing"):
        ada.set_num_gradients_to_accumulate(4, update_smoothing=False)
    with pytest.raises(RuntimeError, match="backward"):
        ada.step(lambda: torch.zeros(()))
    _backward(ada, model, 0)
    ada.step()
    before, steps = values(model), ada.effective_steps()
    with pytest.raises(RuntimeError, match="backward"):
        ada.step()
    assert ada.effective_steps() == steps
    assert all(torch.equal(a, b) for a, b in zip(values(model), before, strict=True))
    _backward(ada, model, 1)  # and it goes on
    ada.step()
    assert ada.effective_steps() > steps
